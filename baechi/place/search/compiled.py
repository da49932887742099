"""Compile inner loops that a search runs a hundred thousand times to machine code.

Such a function takes numbers, arrays and named tuples of arrays, and calls only functions of this kind.
The machine code is cached beside the source, or in the user's cache folder, for the next process.
Without numba the same functions run as Python. They find the same plans, but take fifty times as long.
"""

import logging
from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

try:
    import numba

    _COMPILES = True
except ImportError:
    _COMPILES = False
    logging.getLogger(__name__).warning(
        "numba is not installed (pip install numba): searches find the same plans, but take 50 times as long"
    )

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Numbers = TypeVar("Numbers", Floats, Ints)
Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile a function when it is first called.

    Args:
        function: a function of the kind described above.

    Returns:
        The same function, many times as fast if numba is installed.
    """
    if not _COMPILES:
        return function
    try:
        return cast(Function, numba.njit(function, cache=True))
    except RuntimeError:  # no folder can be written: every process compiles for itself
        return cast(Function, numba.njit(function))
