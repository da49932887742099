"""Placing without the garbage collector, which would go through many new tuples, all in use."""

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def uncollected(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The same function; no cycles are looked for while it runs.

    Args:
        function: one that makes many objects and keeps them to its end.
    """

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return run
