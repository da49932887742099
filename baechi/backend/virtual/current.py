"""Which emulated cluster is at work: one in a process, and none in a thread that has set it aside."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from baechi.backend.virtual.machine.emulator import Emulator
from baechi.errors import BaechiError
from baechi.torchlib.private.modes import (
    TorchDispatchMode,
    dispatch_modes,
    pop_dispatch_mode,
    push_dispatch_mode,
    without_dispatch_modes,
)

_open: list[tuple[Emulator, TorchDispatchMode]] = []
_aside = threading.local()


def at_work() -> Emulator | None:
    """The emulator that watches this thread; None if none does."""
    return _open[0][0] if _open and not getattr(_aside, "depth", 0) else None


def open_with(emulator: Emulator, mode: TorchDispatchMode) -> None:
    """Let an emulator be at work.

    Args:
        emulator: the emulator.
        mode: the mode that shows it every operation.

    Raises:
        BaechiError: another one is.
    """
    if _open:
        raise BaechiError(
            "a cluster is emulated already: emulations do not nest. baechi.check opens the "
            "cluster itself: call it outside of `with cluster:`"
        )
    _open.append((emulator, mode))


def close() -> None:
    """Let no emulator be at work."""
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


@contextmanager
def unwatched() -> Iterator[None]:
    """Nothing that this thread does here is emulated: capturing and measuring a model."""
    if at_work() is None:
        yield
        return
    _aside.depth = getattr(_aside, "depth", 0) + 1
    try:
        with without_dispatch_modes():
            yield
    finally:
        _aside.depth -= 1
