"""Compile inner loops that a search runs a hundred thousand times to machine code.

Such a function takes numbers, arrays and named tuples of arrays, and calls only functions of this kind:

    Python ─▶ compiled ─▶ inlined ─▶ inlined       one way in; what lies within has none of its own,
                                                   which halves the time that the compiler takes

The compiler (numba, the extra `search`) takes five seconds, which many searches do not. So Python runs these
functions until they have taken a part of a second; then they are compiled, and cached for the next process
beside the source or in the user's cache folder. What the cache has runs compiled from the start. Either way
it is the same search with the same plan.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from time import thread_time
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from baechi.place.search.stale import drop_stale
from baechi.progress import progress

logger = logging.getLogger(__name__)

PATIENCE_S = 0.4
"""Processor time in Python after which a function is compiled. A search ends before, near a bound, or takes
Python minutes."""

_LEVEL = 1
"""How hard LLVM tries. At its usual 3 compiling takes a tenth longer, and searches run no faster."""

_OPTIONS = {"error_model": "numpy", "_nrt": False}
"""No array is made within compiled functions, so numba need not count references, which takes long."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Numbers = TypeVar("Numbers", Floats, Ints)
Function = TypeVar("Function", bound=Callable[..., object])
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


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
    return njit


_COMPILE = _compiler()  # asked once: when the first search of a process begins


class Compiled(Generic[Arguments, Result]):
    """A function that Python calls, which becomes machine code once that is at hand or worth its time.

    Args:
        function: a function of the kind described above.
    """

    def __init__(self, function: Callable[Arguments, Result]) -> None:
        self._python, self._python_s = function, 0.0
        self._machine: Any = None
        if _COMPILE is not None:
            try:
                self._machine = _COMPILE(function, cache=True, **_OPTIONS)
                drop_stale(Path(__file__).parent, Path(self._machine.stats.cache_path))
            except RuntimeError:  # no folder can be written: every process compiles for itself
                self._machine = _COMPILE(function, **_OPTIONS)

    def __call__(self, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        if self.is_at_hand:
            return cast(Result, self._machine(*arguments, **named))
        if self._machine is not None and self._python_s > PATIENCE_S:
            with suppress(Timeout), self._turn(), progress("compiling the search"):
                logger.warning(
                    "compiling the search of 'auto', once on this machine: five to ten seconds of processor "
                    "time; effort=0 places without it"
                )
                with _at_level(_LEVEL):
                    return cast(Result, self._machine(*arguments, **named))
        begun_s = thread_time()
        try:
            return self._python(*arguments, **named)
        finally:
            self._python_s += thread_time() - begun_s

    @property
    def is_at_hand(self) -> bool:
        """Whether machine code is there: compiled in this process, or cached by one before."""
        if self._machine is None or self._machine.signatures:
            return self._machine is not None
        folder = self._machine.stats.cache_path
        return folder is not None and any(Path(folder).glob(f"*.{self._python.__name__}-*.nbi"))

    def _turn(self) -> AbstractContextManager[object]:
        """One process compiles; meanwhile Python goes on in others (`Timeout`); then all use its cache."""
        folder = self._machine.stats.cache_path
        if folder is None:
            return nullcontext()
        return FileLock(Path(folder) / f"{self._python.__name__}.lock", blocking=False)


@contextmanager
def _at_level(level: int) -> Iterator[None]:
    """Let numba's compiler try as hard as this, as `NUMBA_OPT` would."""
    import numba

    config: Any = numba.config
    before = config.OPT
    config.OPT = min(before, type(before)(level))
    try:
        yield
    finally:
        config.OPT = before


def compiled(function: Callable[Arguments, Result]) -> Compiled[Arguments, Result]:
    """Let a function that Python calls be compiled when that is worth its time; see `Compiled`."""
    return Compiled(function)


def inlined(function: Function) -> Function:
    """Compile a function as a part of those that call it."""
    if _COMPILE is None:
        return function
    from numba.extending import register_jitable

    # a call that is not inlined hands over each array as seven numbers, hundreds in all
    register_jitable(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)(function)
    return function


@inlined
def copy(source: Numbers, target: Numbers) -> None:
    """Copy an array into another. A loop, since a slice assignment takes two seconds to compile."""
    for place in range(len(source)):
        target[place] = source[place]
