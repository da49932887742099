"""Signs of life: what is being done, once it takes longer than a second.

On a terminal a bar with the time that has passed; where stages nest, the innermost one is shown. Elsewhere
nothing, or with `verbose=True` one line for each stage that took longer than a second.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from baechi.units import format_seconds

_AFTER_S = 1.0

_VERBOSE: ContextVar[bool | None] = ContextVar("verbose", default=None)
_SHOWN: ContextVar[tuple[Progress, TaskID] | None] = ContextVar("shown", default=None)


@contextmanager
def verbosity(verbose: bool | None) -> Iterator[None]:
    """Say for a stretch of code whether it shows progress."""
    token = _VERBOSE.set(_VERBOSE.get() if verbose is None else verbose)
    try:
        yield
    finally:
        _VERBOSE.reset(token)


def say(line: Callable[[], str]) -> None:
    """Print one line to the standard error, where progress is shown; in a notebook, too."""
    console = Console(stderr=True)
    if _speaks(console) or (_VERBOSE.get() is None and console.is_jupyter):
        console.print(line(), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress(
    what: str, total: int | None = None, *, console: Console | None = None
) -> Iterator[Callable[[], None]]:
    """Show what is being done while it runs."""
    console = console or Console(stderr=True)
    if not _speaks(console):
        yield _nothing
    elif not console.is_terminal:
        begun_s = time.monotonic()
        yield _nothing
        took_s = time.monotonic() - begun_s
        if took_s > _AFTER_S:
            console.print(f"{what}: {format_seconds(took_s)}", markup=False, highlight=False)
    else:
        with _bar(console) as bar, _task(bar, what, total) as task:
            yield lambda: bar.advance(task)


def _speaks(console: Console) -> bool:
    verbose = _VERBOSE.get()
    return console.is_terminal if verbose is None else verbose


def _nothing() -> None:
    pass


@contextmanager
def _bar(console: Console) -> Iterator[Progress]:
    """The bar of the stage around this one, or a new one that appears after a second."""
    shown = _SHOWN.get()
    if shown is not None:
        yield shown[0]
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    # the standard output stays what it is: a program may redirect it while the bar appears
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    timer = threading.Timer(_AFTER_S, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        timer.join()  # else it could start what was stopped
        bar.stop()


@contextmanager
def _task(bar: Progress, what: str, total: int | None) -> Iterator[TaskID]:
    """A line of the bar; that of the stage around it is hidden meanwhile."""
    outer = _SHOWN.get()
    if outer is not None:
        bar.update(outer[1], visible=False)
    task = bar.add_task(what, total=total)
    token = _SHOWN.set((bar, task))
    try:
        yield task
    finally:
        _SHOWN.reset(token)
        bar.remove_task(task)
        if outer is not None:
            bar.update(outer[1], visible=True)
