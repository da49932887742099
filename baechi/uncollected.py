"""Without the garbage collector, which would go through many new objects again and again, all in use."""

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def only_new_ones() -> Iterator[None]:
    """The garbage collector looks for cycles among objects made meanwhile, not among all that there are."""
    if gc.get_freeze_count():  # the caller has set objects aside: that stays as it is
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
