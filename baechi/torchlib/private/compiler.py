"""`torch.compile`: telling it what to leave alone, without importing it."""

import sys
from collections.abc import Callable, Iterable
from inspect import getclosurevars, isfunction
from typing import Any, TypeVar

import torch

from baechi.torchlib.private.lookup import Missing, named

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PURPOSE = "keep torch.compile out of the runtime's code"
_SKIP: Any = named("torch._C._dynamo.eval_frame._FrameAction.SKIP", _PURPOSE)
_strategy: Any = named("torch._C._dynamo.eval_frame._FrameExecStrategy", _PURPOSE)
_set_strategy: Any = named("torch._C._dynamo.eval_frame.set_code_exec_strategy", _PURPOSE)
_IN_PLACE = "_compiled_call_impl"
"""Where a module keeps what `module.compile()` made."""
_CAN_SKIP = not any(isinstance(part, Missing) for part in (_SKIP, _strategy, _set_strategy))


def leave_uncompiled(function: _Function, why: str) -> _Function:
    """Let the compiler leave a function alone, and all that it calls but what is compiled itself.

    Without these names this is `torch.compiler.disable`: it imports the compiler, and each call takes longer.
    """
    if not _CAN_SKIP:
        disabled: _Function = torch.compiler.disable(function)
        return disabled
    told: Any = function
    told._torchdynamo_disable = True  # where it would be traced into
    told._torchdynamo_disable_msg = why
    _set_strategy(told.__code__, _strategy(_SKIP, _SKIP))  # where it is called from what is compiled
    return function


def compiler_is_imported() -> bool:
    """Whether `torch._dynamo` is there; without it nothing can be compiled."""
    return "torch._dynamo" in sys.modules


def note_functions_anew(functions: Iterable[Any]) -> None:
    """Let the compiler note torch's functions again, if it noted what stood in the place of some of these.

    It does so when it first asks, and would refuse torch's own for the rest of the process.
    """
    noted = getattr(sys.modules.get("torch._dynamo.trace_rules"), "get_torch_obj_rule_map", None)
    if noted is not None and noted.cache_info().currsize and not noted().keys() >= set(functions):
        noted.cache_clear()


def compiler_stance() -> Any:
    """What the compiler, which is imported, does with code that is to be compiled."""
    return sys.modules["torch._dynamo.eval_frame"]._stance


def set_compiler_stance(stance: Any) -> None:
    """Let the compiler do again what `compiler_stance` returned."""
    sys.modules["torch._dynamo.eval_frame"]._set_stance(stance)


def compiled_call(module: torch.nn.Module) -> Callable[..., Any] | None:
    """What `module.compile()` made, which a call of the module runs; None if it was not compiled in place."""
    found: Callable[..., Any] | None = vars(module).get(_IN_PLACE)
    return found


def set_compiled_call(module: torch.nn.Module, compiled: Callable[..., Any] | None) -> None:
    """Let a call of a module run what was compiled; with None, run it as it was written."""
    if compiled is None:
        vars(module).pop(_IN_PLACE, None)
    else:
        vars(module)[_IN_PLACE] = compiled


def compiled_alike(compiled: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Compile a function as another one was compiled: the same backend, the same options."""
    compile_with = getclosurevars(compiled).nonlocals.get("self") if isfunction(compiled) else None
    return compile_with(function) if callable(compile_with) else None


def is_in_compiled_model(model: torch.nn.Module) -> bool:
    """Whether a model that is called was compiled as a whole: by `torch.compile(model)` or `model.compile()`.

    A torch that has other names for that is answered with False.
    """
    if vars(model).get(_IN_PLACE) is not None:
        return True
    return bool(getattr(sys.modules.get("torch._dynamo.eval_frame"), "_in_optimized_module", False))
