"""A KeyboardInterrupt in the main thread: at a counted point of it, or from a timer's signal."""

import contextlib
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import baechi

PACKAGES = (str(Path(baechi.__file__).parent), str(Path(torch.__file__).parent), contextlib.__file__)


class AtPoints:
    """Raises at some points of this thread; those within this context count.

    Python looks for signals where a function begins, and where one that is written in C has returned.

    Args:
        at: the numbers of the points.

    Attributes:
        points: how many there were.
        where: the lines at which it raised.
    """

    def __init__(self, at: tuple[int, ...] = ()) -> None:
        self.at, self.points = at, 0
        self.where: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event in ("call", "c_return") and name.startswith(PACKAGES):
            self.points += 1
            if self.points in self.at:
                place = f"{name}:{frame.f_lineno} {frame.f_code.co_name}, {event}"
                self.where.append(place)
                raise KeyboardInterrupt(place)

    def __enter__(self) -> None:
        sys.setprofile(self)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


class AfterSeconds:
    """Raises when some time has passed within this context.

    Args:
        after_s: from the beginning of the context, in seconds.

    Attributes:
        where: the line at which it raised.
    """

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        self.where: list[str] = []

    def _raise(self, _: int, frame: FrameType | None) -> None:
        assert frame is not None
        self.where.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}, signal")
        raise KeyboardInterrupt(self.where[-1])

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, self.after_s)

    def __exit__(self, *_: object) -> None:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.signal(signal.SIGALRM, self._before)
