"""Exceptions of signal handlers, at each point of the main thread where Python lets one come."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import baechi

PACKAGE = str(Path(baechi.__file__).parent)
HANDING_OVER = ("/lane.py", "/flag.py", "/call_end.py", "/executor.py", "/kept_apart.py", "/thread.py")


class Interrupted(Exception):
    """What a signal's handler raises."""


class Interruption:
    """Raises at one of the points.

    Python looks for signals where a function begins, and where one that is written in C has returned.

    Args:
        files: ends of the names of the files whose points count; all of the package, if there are none.
        at: the number of the point; 0 for none.

    Attributes:
        points: how many there were.
        where: the line at which it raised.
    """

    def __init__(self, files: tuple[str, ...], at: int = 0) -> None:
        self.files, self.at, self.points, self.where = files, at, 0, ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        ours = name.endswith(self.files) if self.files else name.startswith(PACKAGE)
        if event in ("call", "c_return") and (ours or name == contextlib.__file__):
            self.points += 1
            if self.points == self.at:
                self.where = f"{name}:{frame.f_lineno} {frame.f_code.co_name}, {event}"
                raise Interrupted(self.where)

    @contextmanager
    def within(self) -> Iterator[None]:
        """Points of this thread within this context count."""
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)


def each_point(
    files: tuple[str, ...], run: Callable[[Interruption], None], stride: int
) -> Iterator[Interruption]:
    """Interrupt at one point after the other, until there are no more.

    Args:
        files: as of `Interruption`.
        run: runs something within the interruption.
        stride: from one point to the next; 1 for all.
    """
    at = 1
    while True:
        interruption = Interruption(files, at)
        run(interruption)
        if interruption.points < at:
            return
        yield interruption
        at += stride
