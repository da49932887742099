"""What a layer draws is what it would have drawn in the plain model."""

from typing import Any

import pytest
import torch
from order.interleaved import distribute
from run.launched import LAUNCHERS, assert_planned
from same import assert_same, step
from torch import Tensor, nn


class Dropping(nn.Module):
    """Two chains that draw random numbers, in layers and between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))
        self.drop_a, self.drop_b = nn.Dropout(0.5), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        first = self.drop_a(self.a(x)) + torch.randn(16)
        second = nn.functional.dropout(self.drop_b(self.b(x)), 0.2, self.training)
        result: Tensor = self.c(first) * torch.bernoulli(second.detach().sigmoid()) + torch.rand_like(second)
        return result


@pytest.mark.parametrize("reorder", [*LAUNCHERS, False])
def test_the_same_units_are_dropped(reorder: Any) -> None:
    """Random numbers are those of the plain model, and so is the generator's state afterwards."""
    torch.manual_seed(0)
    model = Dropping()
    inputs = {"x": torch.ones(4, 16)}
    reference = step(model, inputs, training=True)
    state = torch.get_rng_state()
    where = {"a": 0, "drop_a": 0, "b": 0, "drop_b": 1, "c": 1}
    cluster = distribute(model, inputs, where, ["b", "drop_b", "a", "drop_a", "c"], reorder=reorder)
    with cluster:
        result = step(model, inputs, training=True)
    assert_same(reference, result)
    assert torch.equal(torch.get_rng_state(), state)
    if reorder is not False:
        assert_planned(model)
