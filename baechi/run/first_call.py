"""Plan a model that was given no example inputs at its first call, with that call's inputs."""

from collections.abc import Callable
from typing import Any

from torch import nn

from baechi.records.inputs import Inputs
from baechi.run.whole import call_in_forward
from baechi.torchlib.dynamo import uncompiled
from baechi.torchlib.modules.intercept import replace_forward, restore_forward

Distribute = Callable[[nn.Module, Inputs], object]

_NAME = "_baechi_first"


def plan_at_first_call(model: nn.Module, distribute: Distribute) -> nn.Module:
    """Let the first call of a model distribute it, and then run it."""
    model.__dict__[_NAME] = distribute
    replace_forward(model, _first_call)
    return model


def forget_first_call(model: nn.Module) -> None:
    """Undo `plan_at_first_call` for a model that was not called yet."""
    model.__dict__.pop(_NAME, None)


@uncompiled
def _first_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    distribute: Distribute = module.__dict__.pop(_NAME)
    restore_forward(module)
    try:
        distribute(module, Inputs(*args, **kwargs))
    except BaseException:
        plan_at_first_call(module, distribute)
        raise
    return call_in_forward(module, args, kwargs)
