"""Gradients of one memory: autograd takes the first of a weight as it is, and adds later ones to it.

A microbatch of one row has nothing to sum up, so the gradient of a token is a view of what also goes on.
"""

import copy

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn

ROWS = 3


class Begun(nn.Module):
    """Words behind a token that is learned, and what was before them, added."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 1, 4))

    def forward(self, words: Tensor, before: Tensor) -> Tensor:
        return torch.cat([self.token.expand(len(words), -1, -1), words], 1) + before


class Net(nn.Module):
    """Comes back to its first device, which has what it needs for two of its stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 4), Begun()

    def forward(self, x: Tensor) -> Tensor:
        before = self.first(x)
        result: Tensor = self.last(self.middle(before[:, 1:].tanh()), before)
        return result.square().mean()


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_what_waits_is_not_added_to(order: str, apart: bool) -> None:
    """The gradient that goes to the first stage, where another microbatch's comes to the token meanwhile."""
    model, x = seeded(Net), noise(ROWS, 3, 4)
    plain = copy.deepcopy(model)
    where = {"first": 0, "middle": 1, "last": 0}
    cluster = pipelined(
        model, x, microbatches=ROWS, device_map=where, order=order, weights_apart=apart, loss_weights="rows"
    )
    with cluster:
        model(x).backward()
    plain(x).backward()
    assert_same_gradients(model, plain)
