"""What `torch.compile` has to leave alone: code of ours, and compiled code while a mode watches it.

A compiled part calls our wrappers and modes, or is called by them: the compiler would trace the runtime.
And where it meets a dispatch mode it gives up on a piece of code for the rest of the process.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

import torch

from baechi.torchlib.private.compiler import (
    compiler_is_imported,
    compiler_stance,
    leave_uncompiled,
    set_compiler_stance,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])

_lock = threading.RLock()
_open: WeakSet["CompilerAside"] = WeakSet()
_before: Any = None
"""What the compiler did before the first of these was opened; None if none is."""


def uncompiled(function: _Function) -> _Function:
    """Let the compiler leave a function alone, and all that it calls but what is compiled itself.

    `torch.compiler.disable` does the same, but it imports the compiler at once, and takes as long at each
    call as a layer's wrapper may take altogether.
    """
    return leave_uncompiled(function, "a distributed model is not compiled as a whole; its parts may be")


class CompilerAside:
    """While one of these is open, in any thread, what is compiled runs as it was written."""

    def __enter__(self) -> None:
        global _before
        try:
            if compiler_is_imported():  # else nothing is compiled
                with _lock:
                    _open.add(self)
                    if _before is None:
                        _before = compiler_stance()
                    torch.compiler.set_stance("force_eager")
        except BaseException:  # of a signal's handler: it is not left then
            self.close()
            raise

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()  # an exception of a signal's handler may have come as `__exit__` began

    def close(self) -> None:
        """Let the compiler do as before, if no other one is open. It may be interrupted, and done again."""
        global _before
        with _lock:
            _open.discard(self)
            if not _open and _before is not None:
                set_compiler_stance(_before)
                _before = None


@contextmanager
def compiler_back() -> Iterator[None]:
    """While this is open, what is compiled runs compiled, also within `CompilerAside`."""
    if not _open:
        yield
        return
    with torch.compiler.set_stance("default"):
        yield
