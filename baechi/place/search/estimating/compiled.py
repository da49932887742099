"""Compile inner loops that a search runs a hundred thousand times to machine code.

Such a function takes numbers, arrays and named tuples of arrays, and calls only functions of this kind:

    Python ─▶ compiled ─▶ inlined ─▶ inlined       one way in; what lies within has none of its own,
                                                   which halves the time that the compiler takes

The machine code is cached beside the source, or in the user's cache folder, for the next process. Without the
compiler (numba, the extra `search`) Python runs these functions: the same search with the same plan, slower.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from baechi.place.search.estimating.stale import drop_stale

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Numbers = TypeVar("Numbers", Floats, Ints)
Function = TypeVar("Function", bound=Callable[..., object])


def _compiler() -> Any:
    """numba's compiler; None, said in the log, where it is not installed."""
    try:
        from numba import njit
    except ModuleNotFoundError:
        logger.warning(
            "numba is not installed, so the search of 'auto' runs uncompiled: the same plan, much later; "
            "pip install numba, or place with effort=0, which does not search"
        )
        return None
    drop_stale(Path(__file__).parents[1])
    return njit


_COMPILE = _compiler()  # asked once: when the first search of a process begins


def compiled(function: Function) -> Function:
    """Compile a function that Python calls, when it is first called.

    Args:
        function: a function of the kind described above.

    Returns:
        The same function, many times as fast; the function itself without numba.
    """
    if _COMPILE is None:
        return function
    try:
        return cast(Function, _COMPILE(function, cache=True))
    except RuntimeError:  # no folder can be written: every process compiles for itself
        return cast(Function, _COMPILE(function))


def inlined(function: Function) -> Function:
    """Compile a function as a part of those that call it.

    Args:
        function: a function of the kind described above.

    Returns:
        The function itself: Python, where it calls it, runs it as Python.
    """
    if _COMPILE is None:
        return function
    from numba.extending import register_jitable

    register_jitable(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    return function


def is_at_hand(function: object) -> bool:
    """Whether a `compiled` function needs no compiler now: it ran in this process, or the cache has it."""
    if _COMPILE is None:
        return True
    dispatcher: Any = function
    folder = dispatcher.stats.cache_path
    cached = folder is not None and any(Path(folder).glob(f"*.{dispatcher.__name__}-*.nbi"))
    return cached or bool(dispatcher.signatures)


@inlined
def copy(source: Numbers, target: Numbers) -> None:
    """Copy an array into another. A loop, since a slice assignment takes two seconds to compile.

    Args:
        source, target: of one length.
    """
    for place in range(len(source)):
        target[place] = source[place]
