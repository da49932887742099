"""Commands that tell what went wrong in one sentence, and how it came about only if asked."""

import errno
import inspect
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from baechi.cli.targets import TargetFailed
from baechi.errors import BaechiError, RecordError, printable
from baechi.report.words import shortened

FAILED = 2
"""Exit status of a command that could not do what it was asked to."""

_PIPE_CLOSED = 141
"""As the shell has it of a command that a closed pipe ends: 128 and the number of SIGPIPE."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)

_NARROWEST = 20
"""Columns of a terminal at least."""

_LONGEST = 2000
"""Characters of a sentence at most."""

_MOST_FAULTS = 3

Debug = Annotated[bool, typer.Option("--debug", help="If something goes wrong, show the whole traceback.")]


class Commands(TyperGroup):
    """All commands. A call of none, or with wrong options, ends with one sentence and status 2, too."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command that the arguments name, and end the process (unless `standalone_mode=False`).

        Args:
            *args: as typer takes them.
            **kwargs: as typer takes them.
        """
        if not kwargs.setdefault("standalone_mode", True):
            return super().main(*args, **kwargs)
        _make_printable()
        try:
            status = super().main(*args, **{**kwargs, "standalone_mode": False})
            sys.stdout.flush()
        except typer.Abort:
            sys.exit(1)
        except (SystemExit, BrokenPipeError) as error:
            if not _is_closed_pipe(error):
                raise
            sys.stdout = open(os.devnull, "w", encoding="utf-8")
            sys.exit(_PIPE_CLOSED)
        except OSError as error:
            if error.errno not in _NO_ROOM or error.filename is not None:
                raise
            sys.stdout = open(os.devnull, "w", encoding="utf-8")
            _tell(f"the standard output cannot be written: {error.strerror}")
            sys.exit(FAILED)
        except Exception as error:
            said = getattr(error, "format_message", None)  # click's own errors, wherever typer has click from
            if said is None:
                raise
            _tell(said())
            sys.exit(FAILED)
        sys.exit(status if isinstance(status, int) else 0)


def _make_printable() -> None:
    """Have somewhere to print, if the shell closed it, and lines that have room for a word."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    columns = os.environ.get("COLUMNS", "").lstrip("0") or "0"
    if "COLUMNS" in os.environ and columns.isdecimal() and len(columns) < 3 and int(columns) < _NARROWEST:
        os.environ["COLUMNS"] = str(_NARROWEST)


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
        except BrokenPipeError:  # who reads has enough
            raise
        except SystemExit as error:  # else of the model's own code
            if debug or _is_closed_pipe(error):
                raise
            _tell(f"the code of the model called sys.exit({error})")
            raise typer.Exit(FAILED) from error
        except (BaechiError, OSError, ValueError, TargetFailed) as error:
            if debug:
                raise
            for line in error.frames if isinstance(error, TargetFailed) else ():
                _print(line)
            _tell(_sentence(error))
            raise typer.Exit(FAILED) from error

    telling.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), debug]
    )
    telling.__annotations__ = {**command.__annotations__, "debug": Debug}
    return telling


def _is_closed_pipe(error: BaseException) -> bool:
    """Whether who reads has enough: rich and click end the process then, by `SystemExit`."""
    return isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError)


def _tell(sentence: str) -> None:
    _print(f"error: {shortened(sentence, _LONGEST)}")


def _print(text: str) -> None:
    lines = [printable(line) for line in text.split("\n")]
    Console(stderr=True).print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    if isinstance(error, RecordError) and len(error.faults) > 1:
        more = len(error.faults) - _MOST_FAULTS
        listed = [*error.faults[:_MOST_FAULTS], *([f"and {more:,} more"] if more > 0 else [])]
        return f"{str(error).partition(chr(10))[0]} {'; '.join(listed)}"
    return str(error)
