"""Layers without weights, which several independent models may share.

Some libraries make one activation module for the whole process. So such a layer is not tied to one
runtime. It has weak references to all runtimes that run it, and follows the one whose step is open in
this thread. Outside a step it runs its plain forward.
"""

import copy
import gc
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

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
        self._seats: WeakKeyDictionary[Runtime, Seat] = WeakKeyDictionary()
        self._seats.update(dict(seats))

    def __len__(self) -> int:
        return len(self._seats)

    def add(self, runtime: Runtime, seat: Seat) -> None:
        """Add a runtime that runs the layer."""
        self._seats[runtime] = seat

    def remove(self, runtime: Runtime) -> None:
        """Remove a runtime."""
        self._seats.pop(runtime, None)

    def current(self) -> tuple[Runtime, Seat] | None:
        """The runtime whose step is open in this thread, and the layer's name and device in it."""
        for runtime, seat in self._seats.items():
            if runtime.glue is not None:
                return runtime, seat
        return None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Shares":
        return Shares([(copy.deepcopy(runtime, memo), seat) for runtime, seat in self._seats.items()])

    def __reduce__(self) -> tuple[Any, ...]:
        return (Shares, (list(self._seats.items()),))


def shares_of(module: nn.Module) -> Shares | None:
    """The runtimes that run a layer without weights; None if it is not distributed."""
    shares: Shares | None = module.__dict__.get(_NAME)
    return shares


def join(module: nn.Module, runtime: Runtime, seat: Seat) -> None:
    """Add a runtime to a layer without weights."""
    module.__dict__.setdefault(_NAME, Shares()).add(runtime, seat)


def leave(module: nn.Module, runtime: Runtime) -> bool:
    """Undo `join`.

    Returns:
        Whether no runtime runs the layer any more.
    """
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
