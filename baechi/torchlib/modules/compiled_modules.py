"""Modules that were compiled in place (`module.compile()`) and whose `forward` is replaced.

    module(x)     torch runs what it compiled: the call with its hooks, and the replaced forward in it
    set aside     torch runs the call as it was written; the original forward alone is compiled

So the compiler sees the module's own code, and nothing of what stands around it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from baechi.torchlib.modules.intercept import COMPILED, original_forward
from baechi.torchlib.private.compiler import compiled_alike, compiled_call, set_compiled_call


@dataclass(frozen=True)
class Compiled:
    """What was compiled in place, set aside. Copies and pickles have None, as torch's own have.

    Args:
        call: what torch made of the module's call.
        forward: the original forward, compiled in the same way; None if it is to run as it was written.
    """

    call: Callable[..., Any]
    forward: Callable[..., Any] | None

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def set_aside(module: nn.Module, *, runs: bool) -> bool:
    """Set aside what was compiled in place, if anything was."""
    call = compiled_call(module)
    if call is None:
        return False
    forward = compiled_alike(call, original_forward(module)) if runs else None
    module.__dict__[COMPILED] = Compiled(call, forward)
    set_compiled_call(module, None)
    return forward is not None


def is_set_aside(module: nn.Module) -> bool:
    """Whether what was compiled of a module in place was set aside."""
    return module.__dict__.get(COMPILED) is not None


def runs_uncompiled(module: nn.Module) -> bool:
    """Whether a module was compiled in place, was set aside, and runs as it was written."""
    found: Compiled | None = module.__dict__.get(COMPILED)
    return found is not None and found.forward is None


def bring_back(module: nn.Module) -> None:
    """Undo `set_aside`; a module of which nothing was set aside is left alone."""
    found: Compiled | None = module.__dict__.pop(COMPILED, None)
    if found is not None:
        set_compiled_call(module, found.call)
