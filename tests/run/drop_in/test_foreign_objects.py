"""Objects of other libraries in attributes and arguments: what is not ours is left alone."""

import collections
import random
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import baechi

X = torch.linspace(-1, 1, 32).reshape(8, 4)
WHERE = {"a": 0, "b": 1}


def _raises(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("ask me otherwise")


_NO_METHODS = {name: _raises for name in ("__len__", "__iter__", "__getitem__", "__bool__", "items", "keys")}


def hostile(base: type, *args: Any) -> Any:
    """An object of a subclass whose methods raise, as those of e3nn's `Irreps` (a tuple) do."""
    return type(f"Hostile{base.__name__}", (base,), dict(_NO_METHODS))(*args)


class Proxy:
    """Answers nothing, not even what it is: as a proxy outside of its context."""

    @property
    def __class__(self) -> Any:
        return _raises()


class Gone:
    """Dies at once."""


OBJECTS = {
    "tuple": lambda: hostile(tuple, (1, 2)),
    "list": lambda: hostile(list, [1]),
    "dict": lambda: hostile(dict, {"a": 1}),
    "ordered dict": lambda: hostile(collections.OrderedDict),
    "set": lambda: hostile(set, [1]),
    "frozenset": lambda: hostile(frozenset, [1]),
    "deque": lambda: hostile(collections.deque, [1]),
    "str": lambda: hostile(str, "a"),
    "proxy": lambda: [Proxy()],
    "dead reference": lambda: [weakref.proxy(Gone())],
    "random numbers of the system": random.SystemRandom,
}


class Net(nn.Module):
    """Hands its object to its second layer, unless that is for nobody to touch."""

    def __init__(self, thing: Any, *, hands_over: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), Takes()
        self.thing = self.a.thing = thing
        self.hands_over = hands_over

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.b(torch.tanh(self.a(x)), self.thing if self.hands_over else None)
        return y


class Takes(nn.Linear):
    """A layer with an object among its arguments."""

    def __init__(self) -> None:
        super().__init__(4, 2)

    def forward(self, x: torch.Tensor, thing: Any = None) -> torch.Tensor:
        return super().forward(x)


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("microbatches", [None, 2], ids=["whole", "pipelined"])
@pytest.mark.parametrize("name", OBJECTS)
def test_what_is_not_ours_is_left_alone(name: str, microbatches: int | None) -> None:
    """Their methods are not called: a model with such an attribute runs as the plain one."""
    hands_over = name not in ("proxy", "dead reference")
    plain, model = [Net(OBJECTS[name](), hands_over=hands_over) for _ in range(2)]
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, X, cluster=cluster, device_map=WHERE, microbatches=microbatches)
    with cluster:
        for _ in range(2):
            assert torch.allclose(model(X), plain(X))
