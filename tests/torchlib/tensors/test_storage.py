"""What holds a tensor's values: what an allocator is told of."""

from collections.abc import Callable

import pytest
import torch

from baechi.torchlib.tensors.storage import memories


def _ragged(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse")
@pytest.mark.parametrize(
    ("build", "count"),
    [
        (lambda: torch.ones(2, 3), 1),
        (lambda: torch.eye(3).to_sparse(), 2),
        (lambda: torch.eye(3).to_sparse_csr(), 3),
        (lambda: _ragged(torch.strided), 1),
        (lambda: _ragged(torch.jagged), 2),
    ],
    ids=["plain", "coo", "csr", "nested", "jagged"],
)
def test_plain_tensors_hold_the_values(build: Callable[[], torch.Tensor], count: int) -> None:
    """Each has a storage of its own, which `record_stream` takes; a write there is seen in the whole."""
    whole = build()
    found = memories(whole)
    assert len({one.untyped_storage().data_ptr() for one in found}) == len(found) == count
    assert all(one.layout == torch.strided and not one.is_nested for one in found)
    values = next(one for one in found if one.is_floating_point())
    values.fill_(7)
    parts = whole.unbind() if whole.is_nested else [whole.to_dense()]
    assert sum([float((part == 7).sum()) for part in parts]) == values.numel()
