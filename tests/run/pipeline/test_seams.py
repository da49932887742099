"""Graphs of parts end at their cuts: what runs on unseen is refused, in whichever step it happens."""

import copy
from collections.abc import Callable
from threading import get_ident

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn

from baechi.errors import BaechiError

X = noise(6, 4)
WHERE = {"first": 0, "middle": 1, "last": 0}
UNSEEN: dict[int, Tensor] = {}
"""By thread: each microbatch has its own."""


class Around(nn.Module):
    """The last layer reads what the first one made, beside the middle one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        middle = self.middle(first)
        result: Tensor = self.last(self.beside(first) + middle)
        return result.square().mean()

    def beside(self, first: Tensor) -> Tensor:
        raise NotImplementedError


class OfView(Around):
    """It reads a view that a property gave."""

    def __init__(self, view: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.view = view

    def beside(self, first: Tensor) -> Tensor:
        return self.view(first)


class ReadsUnseen(nn.Linear):
    """It reads a tensor of a global."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + UNSEEN.get(get_ident(), 0.0))


class LaterUnseen(Around):
    """From its second step on, the last layer reads what the first one made by way of a global."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.calls = ReadsUnseen(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)

    def beside(self, first: Tensor) -> Tensor:
        if self.calls > 1:
            UNSEEN[get_ident()] = first
        return first.detach()


@pytest.mark.parametrize(
    "view",
    [lambda x: x.T.T, lambda x: x.mT.mT, lambda x: torch.complex(x, x).imag],
    ids=["T", "mT", "imag"],
)
def test_views_by_property(view: Callable[[Tensor], Tensor]) -> None:
    """A view belongs to the part of what it shows, also if the code asks for it by a property."""
    model = seeded(lambda: OfView(view))
    plain = copy.deepcopy(model)
    cluster = pipelined(model, X, device_map=WHERE)
    plain(X).backward()
    with cluster:
        model(X).backward()
    assert_same_gradients(model, plain)


def test_a_later_step_reads_unseen() -> None:
    """The code takes a way that the first call did not: in a look, or in the next step, it is refused."""
    model = seeded(LaterUnseen)
    cluster = pipelined(model, X, device_map=WHERE, order="gpipe")
    try:
        with (
            cluster,
            pytest.raises((BaechiError, ValueError), match=r"in a way that is not seen|not with its parts"),
        ):
            for _ in range(2):
                model(X).backward()
    finally:
        UNSEEN.clear()
