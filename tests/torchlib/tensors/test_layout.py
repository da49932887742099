"""A copy keeps strides, alignment and values, whatever the view."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baechi.torchlib.tensors.layout import copy_with_layout, sent_and_held_bytes

BASE = torch.arange(240.0).view(2, 3, 40)
VIEWS = {
    "contiguous": BASE,
    "transposed": BASE.transpose(0, 2),
    "column": BASE[:, 0],
    "offset": BASE[:, :, 3:],
    "stepped": BASE[:, :, ::2],
    "expanded": BASE[:1].expand(5, 3, 40),
    "unfolded": BASE.view(-1).unfold(0, 8, 2),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(3.0),
    "bool": BASE > 3,
    "complex": torch.complex(BASE, BASE).conj(),
    "sparse": torch.eye(3).to_sparse(),
    "double slice": BASE.double()[1, 1:, 5:9],
}


@pytest.mark.parametrize("name", VIEWS)
def test_same_values_and_layout(name: str) -> None:
    """Values are equal, strides too where no element is shared, and nothing is an alias."""
    tensor = VIEWS[name]
    copied = copy_with_layout(tensor, torch.device("cpu"))
    assert copied.dtype == tensor.dtype
    if name == "sparse":
        assert torch.equal(copied.to_dense(), tensor.to_dense())
        return
    assert torch.equal(copied, tensor)
    assert copied.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()
    if name != "unfolded":
        assert copied.stride() == tensor.stride()


@given(st.data())
def test_any_slice_keeps_alignment(data: st.DataObject) -> None:
    """The first element is aligned as the original's is, for any slice of any dtype."""
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.int8, torch.bool]))
    flat = torch.arange(500).to(dtype)
    start, step = data.draw(st.integers(0, 200)), data.draw(st.integers(1, 7))
    tensor = flat[start::step][: data.draw(st.integers(0, 40))]
    copied = copy_with_layout(tensor, torch.device("cpu"))
    assert torch.equal(copied, tensor) and copied.stride() == tensor.stride()
    assert (copied.storage_offset() - tensor.storage_offset()) * copied.element_size() % 64 == 0


@pytest.mark.parametrize("name", VIEWS)
def test_memory_of_the_copy(name: str) -> None:
    """What is said of a copy's memory is what the copy takes."""
    copied = copy_with_layout(VIEWS[name], torch.device("cpu"))
    held = copied.numel() * 4 if name == "sparse" else copied.untyped_storage().nbytes()
    assert sent_and_held_bytes(VIEWS[name])[1] == held


def test_bytes_sent() -> None:
    """Elements between those of a slice do not travel, and those of an expanded tensor travel once."""
    assert sent_and_held_bytes(BASE[:, 0])[0] == 2 * 40 * 4
    assert sent_and_held_bytes(VIEWS["expanded"])[0] == 3 * 40 * 4
    assert sent_and_held_bytes(VIEWS["empty"]) == (0, 0)
