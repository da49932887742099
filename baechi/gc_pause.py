"""Pauses of the garbage collector, which would scan many new objects in vain, since all are in use."""

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def uncollected(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The same function, run without the garbage collector."""

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


@contextmanager
def only_new_ones() -> Iterator[None]:
    """Limit the garbage collector to objects made meanwhile: all earlier ones are frozen."""
    if gc.get_freeze_count():  # the caller froze objects: `unfreeze` would release those, too
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
