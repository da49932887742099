"""Exceptions that handlers of signals raise (Ctrl-C, a timeout): they say nothing of the code that ran."""

import signal
from collections.abc import Iterator
from traceback import walk_tb
from types import CodeType
from typing import Any

from baechi.errors import BaechiError


def is_signalled(error: BaseException) -> bool:
    """Whether a handler of a signal, written in Python, raised an exception, and not the code that ran."""
    handlers = set(_handlers())
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))


def says_nothing_of_rows(error: Exception) -> bool:
    """Whether an exception says nothing of the few rows that a model was asked about: it is to be raised."""
    return isinstance(error, BaechiError) or is_signalled(error)


def _handlers() -> Iterator[CodeType]:
    """The code of what is called when a signal comes."""
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if handler is None or isinstance(handler, signal.Handlers):
            continue
        handler = getattr(handler, "func", handler)  # of a `functools.partial`
        for function in (handler, vars(type(handler)).get("__call__")):
            code = getattr(function, "__code__", None)  # also of a method
            if isinstance(code, CodeType):
                yield code
