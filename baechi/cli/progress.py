"""A sign of life on a terminal, once something takes longer than a second."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_AFTER_S = 1.0


@contextmanager
def progress(what: str, console: Console | None = None) -> Iterator[None]:
    """Show a bar with the time that has passed while something runs; nothing if the output is no terminal.

    Args:
        what: what is being done, such as `"placing"`.
        console: where; the standard error unless given.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
    )
    bar.add_task(what, total=None)
    timer = threading.Timer(_AFTER_S, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # else it could start what was stopped
        bar.stop()
