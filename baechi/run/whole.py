"""Hooks of a model that is placed on one device (or on none, if it computes nothing).

Its `forward` is not wrapped. Two hooks on the root move the inputs to the device, and the outputs back to
where the inputs lay unless they stay, as for a model on several devices.
"""

import sys
import threading
from contextlib import ExitStack
from typing import Any

from torch import nn

from baechi.errors import note
from baechi.run.binding import binding_of
from baechi.run.guards.refusal import refuse_scripting, refuse_tracing
from baechi.run.step.loans import Loans
from baechi.run.step.step import Step
from baechi.run.weights.settle import settled, why_elsewhere
from baechi.torchlib.dynamo import uncompiled
from baechi.torchlib.private.modules import forward_pre_hooks, remove_forward_hooks

_calls = threading.local()


def hook(model: nn.Module) -> None:
    """Hook a model that lies on one device."""
    model.register_forward_pre_hook(_open, with_kwargs=True)
    model.register_forward_hook(_close, with_kwargs=True, always_call=True)
    refuse_scripting(model)


def unhook(model: nn.Module) -> None:
    """Undo `hook`."""
    remove_forward_hooks(model, (_open, _close))


def call_in_forward(model: nn.Module, args: Any, kwargs: Any) -> Any:
    """Call a model from within its own call, whose hooks have run already: with `hook`'s, if it has them."""
    if _open not in forward_pre_hooks(model).values():
        return model.forward(*args, **kwargs)
    lent_args, lent_kwargs = _open(model, args, kwargs)
    result = None
    try:
        result = model.forward(*lent_args, **lent_kwargs)
    finally:
        result = _close(model, args, kwargs, result)
    return result


@uncompiled
def _open(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    binding = binding_of(module)
    assert binding is not None
    refuse_tracing(module)
    runtime = settled(module, binding)
    used = runtime.plan.devices_used
    step = Step(runtime.backend, runtime)
    stack = ExitStack()
    runtime.measure = stack.enter_context(runtime.backend.step())
    lent, loans, told = (args, kwargs), Loans(runtime.backend), None
    if used:  # a model that computes nothing has no device
        told = stack.enter_context(runtime.backend.at(used[0], ""))
        lent, loans = step.lend(lent, used[0])
    beside = () if runtime.outputs_stay else (args, kwargs)  # outputs go to where these lie
    _stack().append((step, stack, loans, beside, told))
    return lent[0], lent[1]


@uncompiled
def _close(module: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
    del args, kwargs
    binding, error = binding_of(module), sys.exception()
    if binding is not None and isinstance(error, RuntimeError):  # torch lets a hook raise no other one
        why = why_elsewhere(module, binding)
        if why:
            note(error, why)
    if not _stack():  # another hook raised before ours was called
        return result
    step, stack, loans, beside, told = _stack().pop()
    with stack:
        if told is not None:
            told(result)
        result = step.bring_home(loans.settle(result), beside)
        step.close()
        return result


def _stack() -> list[tuple[Step, ExitStack, Loans, Any, Any]]:
    if not hasattr(_calls, "stack"):
        _calls.stack = []
    stack: list[tuple[Step, ExitStack, Loans, Any, Any]] = _calls.stack
    return stack
