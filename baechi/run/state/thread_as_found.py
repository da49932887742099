"""What a step leaves in the calling thread when it fails: settings and modes as they were before it.

    grad mode off ─▶ Ctrl-C in `no_grad.__exit__` ─▶ ... ─▶ put back: on

An exception of a signal's handler may come between any two lines, also in a context manager's: then what was
entered is not left. So what was there is noted when a step begins, and put back by code that may run again.
"""

from collections.abc import Callable
from functools import cache, partial
from operator import call
from typing import Any, TypeVar

import torch

from baechi.backend import aside, set_aside
from baechi.run.state.caller_state import CHOICES
from baechi.torchlib.autocast import autocast_types
from baechi.torchlib.left_open import close_left_open
from baechi.torchlib.private.modes import (
    dispatch_modes,
    function_modes,
    set_dispatch_modes,
    set_function_modes,
)

Result = TypeVar("Result")
_Pairs = tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...]


def _autocast_depth() -> int:
    """How many autocast contexts this thread is in (asked in one go, since asking changes it)."""
    depth, _ = map(call, (torch.autocast_increment_nesting, torch.autocast_decrement_nesting))
    return int(depth) - 1


def _set_autocast_depth(depth: int) -> None:
    for _ in range(_autocast_depth() - depth):
        torch.autocast_decrement_nesting()
    if not depth:
        torch.clear_autocast_cache()  # as the outermost context does


@cache
def _settings() -> _Pairs:
    """How to get and set what the runtime changes in the calling thread."""
    casts: list[Any] = []
    for kind in autocast_types():
        casts.append((partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind)))
        casts.append((partial(torch.get_autocast_dtype, kind), partial(torch.set_autocast_dtype, kind)))
    return (
        (aside, set_aside),
        (dispatch_modes, set_dispatch_modes),
        (function_modes, set_function_modes),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        (_autocast_depth, _set_autocast_depth),
        *casts,
        *CHOICES,
    )


@cache
def _questions() -> tuple[Callable[[], Any], ...]:
    return tuple([ask for ask, _ in _settings()])


class ThreadAsFound:
    """The settings and modes of the calling thread, as they are now."""

    def __init__(self) -> None:
        self._before = [*map(call, _questions())]

    def put_back(self) -> None:
        """Set those that differ. It may be interrupted, and done again."""
        for (ask, choose), before in zip(_settings(), self._before, strict=True):
            if ask() != before:
                choose(before)


def left_as_before(run: Callable[[], Result]) -> Result:
    """Run a step; if it fails, the calling thread is as before it."""
    found, is_done = ThreadAsFound(), False
    try:
        try:
            result = run()
            is_done = True
            return result
        except BaseException as error:
            close_left_open(error)
            raise
        finally:
            if not is_done:
                found.put_back()
    finally:  # an exception of a signal's handler may have come in the lines above
        if not is_done:
            found.put_back()
