"""What an emulated cluster is told around a step, a layer and a functional op."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from baechi.backend.virtual import current
from baechi.backend.virtual.machine.emulator import Emulator
from baechi.records.timeline import Timeline


class InLayer(AbstractContextManager[None]):
    """In a layer, in this thread (a generator would cost the host more)."""

    __slots__ = ("_before", "_emulator", "_layer")

    def __init__(self, emulator: Emulator, layer: str) -> None:
        self._emulator, self._layer = emulator, layer

    def __enter__(self) -> None:
        self._before = self._emulator.enter_layer(self._layer)

    def __exit__(self, *exception: object) -> None:
        self._emulator.enter_layer(self._before)


class InFunctionalOp(AbstractContextManager[None]):
    """In a functional op between layers: what it owes the host is over with it."""

    __slots__ = ("_emulator",)

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        self._emulator.thread.pay()


class InRank(AbstractContextManager[None]):
    """At a device of a rank: what the program does here, the host of that rank does."""

    __slots__ = ("_before", "_inside", "_rank", "_thread")

    def __init__(self, emulator: Emulator, device: int, inside: AbstractContextManager[None]) -> None:
        self._thread, self._inside = emulator.thread, inside
        self._rank = self._thread.rank_of(device)

    def __enter__(self) -> None:
        self._before, self._thread.rank = self._thread.rank, self._rank
        self._inside.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._inside.__exit__(*exception)
        self._thread.rank = self._before


@contextmanager
def emulated_step(emulator: Emulator) -> Iterator[Callable[[], Timeline]]:
    """Enclose the run of a model; see `AbstractBackend.step`."""
    with current.entered(), emulator.step() as record:
        yield functools.partial(emulator.timeline, record)
