"""`DistributedDataParallel`: which one runs, and which weights it leaves alone."""

from collections.abc import Callable
from typing import Any

from torch import nn

from baechi.torchlib.private.lookup import named

running_parallel: Callable[[], Any] = named(
    "torch.nn.parallel.DistributedDataParallel._get_active_ddp_module",
    "average gradients of sharded weights over processes",
)
"""The `DistributedDataParallel` whose forward runs; None if there is none."""

_LEFT_ALONE = "_ddp_params_and_buffers_to_ignore"


def leave_alone(model: nn.Module, names: list[str]) -> None:
    """Let a `DistributedDataParallel` that is made of a model leave some weights alone."""
    if names:
        setattr(model, _LEFT_ALONE, names)
    else:
        vars(model).pop(_LEFT_ALONE, None)
