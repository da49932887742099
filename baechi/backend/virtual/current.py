"""Which emulated cluster is at work: one in a process, and none in a thread that has set it aside."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from baechi.backend.virtual.machine.emulator import Emulator
from baechi.errors import BaechiError
from baechi.torchlib.private.modes import (
    TorchDispatchMode,
    dispatch_modes,
    pop_dispatch_mode,
    push_dispatch_mode,
    set_dispatch_modes,
    without_dispatch_modes,
)

_open: list[tuple[Emulator, TorchDispatchMode]] = []
_aside = threading.local()

aside: Callable[[], Emulator | None] = partial(getattr, _aside, "emulator", None)
"""The emulator that this thread has set aside; None if none is."""


def at_work() -> Emulator | None:
    """The emulator that watches this thread; None if none does."""
    return _open[0][0] if _open and _open[0][0] is not aside() else None


def set_aside(emulator: Emulator | None) -> None:
    """Set an emulator aside in this thread."""
    _aside.emulator = emulator


def open_with(emulator: Emulator, mode: TorchDispatchMode) -> None:
    """Let an emulator be at work."""
    if _open:
        raise BaechiError(
            "a cluster is emulated already: emulations do not nest. baechi.check opens the "
            "cluster itself: call it outside of `with cluster:`"
        )
    _open.append((emulator, mode))


def close(mode: TorchDispatchMode) -> None:
    """Let no emulator be at work, if this mode's is."""
    if _open and _open[0][1] is mode:
        _open.clear()


@contextmanager
def entered() -> Iterator[None]:
    """This thread's operations are watched, too: modes belong to threads."""
    if at_work() is None or _open[0][1] in dispatch_modes():
        yield
        return
    push_dispatch_mode(_open[0][1])
    try:
        yield
    finally:
        pop_dispatch_mode()


@contextmanager
def suspended() -> Iterator[None]:
    """The emulated cluster at work, if one is, is set aside in all threads: another one may open here."""
    before = list(_open)
    _open.clear()
    try:
        with without_dispatch_modes():
            yield
    finally:
        _open[:] = before


class _Unwatched:
    """Within this context this thread has set the emulator at work aside, with its mode.

    (No generator: one that a signal's handler interrupts may put modes back when the step is over.)
    """

    __slots__ = ("_modes",)

    def __enter__(self) -> None:
        emulator = at_work()
        self._modes = None if emulator is None else dispatch_modes()
        if emulator is not None:
            set_aside(emulator)
            set_dispatch_modes(())

    def __exit__(self, *exception: object) -> None:
        if self._modes is not None:
            set_dispatch_modes(self._modes)
            set_aside(None)


def unwatched() -> AbstractContextManager[None]:
    """Nothing that this thread does here is emulated: capturing and measuring a model."""
    return _Unwatched()
