"""A limit on what a block takes."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def limited(limit_s: float, error: BaseException) -> Iterator[None]:
    """Raise in the block when it takes too long; the main thread only.

    Args:
        limit_s: how long it may take.
        error: what is raised.
    """

    def stop(*_: Any) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
