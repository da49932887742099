"""What `torch.compile` has to leave alone: code of ours, and compiled code while a mode watches it.

A compiled part calls our wrappers and modes, or is called by them: the compiler would trace the runtime.
And where it meets a dispatch mode it gives up on a piece of code for the rest of the process.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

_Function = TypeVar("_Function", bound=Callable[..., Any])

_lock = threading.Lock()
_depth = 0
_stance = ExitStack()


def uncompiled(function: _Function) -> _Function:
    """Let the compiler leave a function alone, and all that it calls but what is compiled itself.

    `torch.compiler.disable` does the same, but it imports the compiler at once, and takes as long at each
    call as a layer's wrapper may take altogether.

    Args:
        function: a Python function.

    Returns:
        The same function.
    """
    told: Any = function
    told._torchdynamo_disable = True  # where it would be traced into
    told._torchdynamo_disable_msg = "a distributed model is not compiled as a whole; its parts may be"
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(told.__code__, skip)  # where it is called from what is compiled
    return function


@contextmanager
def compiler_aside() -> Iterator[None]:
    """While this is open, in any thread, what is compiled runs as it was written."""
    global _depth
    if "torch._dynamo" not in sys.modules:  # nothing is compiled
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
