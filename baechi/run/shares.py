"""Layers without weights, which several independent models may share.

Some libraries make one activation module for the whole process. So such a layer is not tied to one
runtime. It has weak references to all runtimes that run it, and follows the one whose step is open in
this thread. Outside a step it runs its plain forward.
"""

import copy
import gc
import weakref
from collections.abc import Iterable
from typing import Any

from torch import nn

from baechi.run.runtime import Runtime

_NAME = "_baechi_shares"

Seat = tuple[str, str]
"""The module's qualified name in a model, and the device where it runs there."""


class Shares:
    """The runtimes that run a layer, and the device of each.

    Args:
        seats: each runtime with the layer's name and device in it.
    """

    def __init__(self, seats: Iterable[tuple[Runtime, Seat]] = ()) -> None:
        self._seats: list[tuple[weakref.ref[Runtime], Seat]] = []
        for runtime, seat in seats:
            self.add(runtime, seat)

    def __len__(self) -> int:
        return len(self._alive())

    def add(self, runtime: Runtime, seat: Seat) -> None:
        """Add a runtime that runs the layer."""
        self.remove(runtime)
        self._seats.append((weakref.ref(runtime), seat))

    def remove(self, runtime: Runtime | None) -> None:
        """Remove a runtime, and those that are gone."""
        self._seats = [(there, seat) for there, seat in self._seats if there() not in (runtime, None)]

    def current(self) -> tuple[Runtime, Seat] | None:
        """The runtime whose step is open in this thread, and the layer's name and device in it."""
        for there, seat in self._seats:
            runtime = there()
            if runtime is not None and runtime.glue is not None:
                return runtime, seat
        return None

    def _alive(self) -> list[tuple[Runtime, Seat]]:
        found = [(there(), seat) for there, seat in self._seats]
        return [(runtime, seat) for runtime, seat in found if runtime is not None]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Shares":
        return Shares([(copy.deepcopy(runtime, memo), seat) for runtime, seat in self._alive()])

    def __reduce__(self) -> tuple[Any, ...]:
        return (Shares, (self._alive(),))


def shares_of(module: nn.Module) -> Shares | None:
    """The runtimes that run a layer without weights; None if it is not distributed."""
    shares: Shares | None = module.__dict__.get(_NAME)
    return shares


def join(module: nn.Module, runtime: Runtime, seat: Seat) -> None:
    """Add a runtime to a layer without weights."""
    module.__dict__.setdefault(_NAME, Shares()).add(runtime, seat)


def leave(module: nn.Module, runtime: Runtime) -> bool:
    """Undo `join`."""
    shares = shares_of(module)
    if shares is None:
        return True
    shares.remove(runtime)
    if len(shares):
        gc.collect()  # deleted models are reference cycles of modules and wrappers
    if len(shares):
        return False
    del module.__dict__[_NAME]
    return True
