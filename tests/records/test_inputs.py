"""What users hand in for the arguments of a call, or of several."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi.records import Inputs

X, Y = torch.ones(2, 3), torch.zeros(2, 3)


def called(examples: list[Inputs]) -> list[tuple[Any, Any]]:
    return [(one.args, one.kwargs) for one in examples]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (X, [((X,), {})]),
        ([X, Y], [((X, Y), {})]),  # a DataLoader's batch; it was two examples
        ([X], [((X,), {})]),
        ([X, 3, None], [((X, 3, None), {})]),
        ((X, Y), [((X, Y), {})]),
        ({"x": X}, [((), {"x": X})]),
        ([(X,), (X, Y)], [((X,), {}), ((X, Y), {})]),
        ([{"x": X}, Inputs(Y)], [((), {"x": X}), ((Y,), {})]),
    ],
)
def test_forms(given: Any, expected: list[Any]) -> None:
    """One call, or a list of them."""
    assert str(called(Inputs.each_of(given))) == str(expected)


def test_examples_are_said_outright() -> None:
    """Then each may be what one call may be, a tensor or a list, too."""
    assert str(called(Inputs.each_of(None, [X, [X, Y]]))) == str([((X,), {}), ((X, Y), {})])
    with pytest.raises(ValueError, match="not both"):
        Inputs.each_of(X, [X])
    with pytest.raises(ValueError, match="empty"):
        Inputs.each_of(None, [])


@pytest.mark.parametrize("given", [[X, (X,)], [{"x": X}, Y], [X, [Y]], [], {1}])
def test_neither_one_nor_several(given: Any) -> None:
    """Mixtures say what to write."""
    with pytest.raises((TypeError, ValueError), match=r"examples|baechi\.Inputs"):
        Inputs.each_of(given)


class Sum(nn.Module):
    """A model of two arguments, as a loop calls it with a batch of a `TensorDataset`."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        h: Tensor = self.a(x)
        return h if y is None else h + self.b(y)


def test_a_batch_of_a_data_loader() -> None:
    """It plans one call; examples are the union of theirs."""
    data = torch.utils.data.TensorDataset(X, Y)
    batch = next(iter(torch.utils.data.DataLoader(data, batch_size=2)))
    cluster = baechi.Cluster.virtual(2)
    assert isinstance(batch, list)
    assert baechi.profile(Sum(), batch, cluster=cluster).has_node("b")
    assert not baechi.profile(Sum(), examples=[X], cluster=cluster).has_edge("b", "glue:/add#0")
    model = baechi.distribute(Sum(), examples=[X, batch], cluster=cluster)
    assert torch.equal(model(X, Y), baechi.restore(model)(X, Y))
