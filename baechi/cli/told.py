"""Errors of a command, told in a sentence and its cure; the traceback only for who asks for it."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec

import typer
from rich.console import Console

from baechi.errors import BaechiError

FAILED = 2
"""The exit code of a command that could not be done; 1 is a plain no."""

debug: ContextVar[bool] = ContextVar("debug", default=False)
"""Whether errors come with their traceback."""

P = ParamSpec("P")


def told(command: Callable[P, None]) -> Callable[P, None]:
    """A command that ends with one line on the error output when it is given something wrong.

    Args:
        command: a command that raises for what it cannot do.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (BaechiError, OSError, ValueError) as error:
            if debug.get():
                raise
            Console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(FAILED) from error

    return run
