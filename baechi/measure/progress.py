"""A progress bar for what takes more than a second, on a terminal only."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

_QUIET_S = 1.0


@contextmanager
def shown(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how far something has come.

    Args:
        what: what is going on.
        total: how many parts it has.

    Yields:
        To be called when a part is over.
    """
    console = Console(stderr=True)
    bar = Progress(console=console, transient=True)
    task = bar.add_task(what, total=total)
    begun_s = time.monotonic()

    def advance() -> None:
        bar.advance(task)
        if console.is_terminal and not bar.live.is_started and time.monotonic() - begun_s > _QUIET_S:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()
