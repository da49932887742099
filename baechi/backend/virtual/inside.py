"""What an emulated cluster is told around a step, a layer and a functional op."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from baechi.backend.virtual import current
from baechi.backend.virtual.machine.emulator import Emulator
from baechi.records.timeline import Timeline


class InLayer:
    """In a layer, in this thread (a generator would cost the host more)."""

    __slots__ = ("_before", "_emulator", "_layer")

    def __init__(self, emulator: Emulator, layer: str) -> None:
        self._emulator, self._layer = emulator, layer

    def __enter__(self) -> None:
        self._before = self._emulator.enter_layer(self._layer)

    def __exit__(self, *exception: object) -> None:
        self._emulator.enter_layer(self._before)


class InFunctionalOp:
    """In a functional op between layers: what it owes the host is over with it."""

    __slots__ = ("_emulator",)

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        self._emulator.thread.pay()


@contextmanager
def emulated_step(emulator: Emulator) -> Iterator[Callable[[], Timeline]]:
    """Enclose the run of a model; see `AbstractBackend.step`."""
    with current.entered(), emulator.step() as record:
        yield functools.partial(emulator.timeline, record)
