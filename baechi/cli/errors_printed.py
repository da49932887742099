"""Commands that tell what went wrong in one sentence, and how it came about only if asked."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer
from rich.console import Console

from baechi.errors import BaechiError, printable

FAILED = 2
"""Exit status of a command that could not do what it was asked to."""

Debug = Annotated[bool, typer.Option("--debug", help="If something goes wrong, show the whole traceback.")]


def errors_printed(command: Callable[..., None]) -> Callable[..., None]:
    """A command that prints one sentence where it would raise, and takes `--debug`, which lets it raise.

    Args:
        command: a function of the command line.

    Returns:
        The same, with one option more. Wrong files, values and plans end it with status 2.
    """
    debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    signature = inspect.signature(command)

    @wraps(command)
    def telling(*args: Any, debug: bool = False, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (BaechiError, OSError, ValueError) as error:
            if debug:
                raise
            Console(stderr=True).print(
                f"error: {_sentence(error)}", markup=False, highlight=False, soft_wrap=True
            )
            raise typer.Exit(FAILED) from error

    telling.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), debug]
    )
    telling.__annotations__ = {**command.__annotations__, "debug": Debug}
    return telling


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return printable(f"{error.filename}: {error.strerror.lower()}")
    return "\n".join(map(printable, str(error).split("\n")))
