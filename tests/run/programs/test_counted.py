"""Numbers of Python that code counts: variables of the graph's guards, and no part of what is computed."""

import copy
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients, loop
from run.pipeline.nets import noise, seeded
from run.programs.test_calls import EXACT, programs
from torch import Tensor, nn

import baechi

X = noise(8, 6)
WHERE = {"first": 0, "last": 1}


class Layer(nn.Linear):
    """A layer that counts in an attribute of its class, at first."""

    rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows = self.rows + 2
        return super().forward(x)


class Scheduled(nn.Module):
    """Code that counts its calls, and decides by that."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Layer(6, 6), nn.Linear(6, 6)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        made: Tensor = self.first(x)
        if self.calls > 5:
            made = made * 0.5
        if self.calls % 3 == 0:
            made = made + 1
        return self.last(made).square().mean()


@pytest.mark.parametrize("number", [1, 4])
def test_as_the_loop(number: int) -> None:
    """Each call, or microbatch, counts once, and decides as the code does."""
    model = seeded(Scheduled)
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(2)
    split: dict[str, Any] = {"microbatches": number, "coupled": "accept"} if number > 1 else {}
    baechi.distribute(model, X, cluster=cluster, device_map=WHERE, compile=EXACT, **split)
    for _ in range(8):
        for one in (model, plain):
            one.zero_grad()
        expected = loop(plain, {"x": X}, number)
        loss = model(X)
        loss.backward()
        assert torch.allclose(loss.detach(), expected, rtol=1e-13) and programs(model)
        assert_same_gradients(model, plain, 1e-13)
        assert model.calls == plain.calls
        assert model.get_submodule("first").rows == plain.get_submodule("first").rows
