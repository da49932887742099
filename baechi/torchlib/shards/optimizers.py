"""What optimizers of torch must know of sharded weights: lists take them, state lies beside them.

sharded weight, state whole    load_state_dict before the split    the state is cut before the next step
weight whole, sharded state    after the model was restored        the state is joined before it
both in shards, cut elsewhere    after another split                 the state is cut anew before it
load_state_dict                  whole tensors from a file           each is cut as it is read
"""

from functools import cache
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from baechi.torchlib.private.patches import OPTIMIZER_LOADS
from baechi.torchlib.private.tensors import LIST_TYPES
from baechi.torchlib.shards.updates import teach_updates
from baechi.torchlib.shards.weight import ShardedWeight

_DENSE = torch.contiguous_format


@cache
def teach_optimizers() -> None:
    """Let optimizers of this process take sharded weights; done once, when the first weight is cut."""
    for types in LIST_TYPES:
        types.append(ShardedWeight)
    register_optimizer_step_pre_hook(_settle_state)
    OPTIMIZER_LOADS.put(staticmethod(_loaded_value))
    teach_updates()


def _settle_state(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step: state lies as its weight does."""
    del args, kwargs
    for weight, state in optimizer.state.items():
        lies = _lies(weight)
        for key, value in state.items():
            if _lies(value) != lies and isinstance(value, torch.Tensor) and value.shape == weight.shape:
                state[key] = _as_weight(weight, value)


def _lies(value: Any) -> Any:
    """How a sharded tensor is cut; None for anything else."""
    return value.lies if type(value) is ShardedWeight else None


def _as_weight(weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if isinstance(value, ShardedWeight):
        if _lies(weight) == value.lies:
            return value
        value = value.on_host()
        if not isinstance(weight, ShardedWeight):
            return value.to(weight.device)
    if not isinstance(weight, ShardedWeight) or not value.dim():
        return value
    views = zip(value.split(list(weight.sizes), weight.axis), weight.shards, strict=True)
    return weight.like([view.clone(memory_format=_DENSE).to(shard.device) for view, shard in views])


def _loaded_value(
    param: torch.Tensor, value: torch.Tensor, param_id: int, param_groups: Any, key: Any = None
) -> torch.Tensor:
    """State that `Optimizer.load_state_dict` has read: cut at once, so that no device holds the whole."""
    if isinstance(param, ShardedWeight) and value.shape == param.shape:
        floating = param.is_floating_point() and key != "step"
        return _as_weight(param, value.to(dtype=param.dtype) if floating else value)
    original: Any = OPTIMIZER_LOADS.original
    read: torch.Tensor = getattr(original, "__func__", original)(param, value, param_id, param_groups, key)
    return read
