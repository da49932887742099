"""Context managers that an exception of a signal's handler kept from being left.

A generator's is lost where the exception comes in `contextlib`'s own lines: `with` has not begun yet, or is
ending. Python closes the generator when nothing holds the traceback any more. That may be in another step,
where what it puts back (a mode, as torch's do) is wrong.
"""

import contextlib
from inspect import GEN_SUSPENDED, getgeneratorstate
from traceback import walk_tb
from types import GeneratorType


def close_left_open(error: BaseException) -> None:
    """Close the generators that an exception found between entering and leaving, the innermost first."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        if frame.f_code.co_filename == contextlib.__file__:
            made = getattr(frame.f_locals.get("self"), "gen", None)
            if isinstance(made, GeneratorType) and getgeneratorstate(made) == GEN_SUSPENDED:
                made.close()
