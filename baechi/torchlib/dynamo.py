"""What `torch.compile` has to leave alone: code of ours, and compiled code while a mode watches it.

A compiled part calls our wrappers and modes, or is called by them: the compiler would trace the runtime.
And where it meets a dispatch mode it gives up on a piece of code for the rest of the process.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch

from baechi.torchlib.private.compiler import compiler_is_imported, leave_uncompiled

_Function = TypeVar("_Function", bound=Callable[..., Any])

_lock = threading.Lock()
_depth = 0
_stance = ExitStack()


def uncompiled(function: _Function) -> _Function:
    """Let the compiler leave a function alone, and all that it calls but what is compiled itself.

    `torch.compiler.disable` does the same, but it imports the compiler at once, and takes as long at each
    call as a layer's wrapper may take altogether.
    """
    return leave_uncompiled(function, "a distributed model is not compiled as a whole; its parts may be")


@contextmanager
def compiler_aside() -> Iterator[None]:
    """While this is open, in any thread, what is compiled runs as it was written."""
    global _depth
    if not compiler_is_imported():  # nothing is compiled
        yield
        return
    with _lock:
        _depth += 1
        if _depth == 1:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                _stance.close()


@contextmanager
def compiler_back() -> Iterator[None]:
    """While this is open, what is compiled runs compiled, also within `compiler_aside`."""
    if not _depth:
        yield
        return
    with torch.compiler.set_stance("default"):
        yield
