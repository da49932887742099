"""Functions and attributes of sharded tensors that never reach the dispatcher, or must not reach it."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from baechi.torchlib.shards.gradients import shards_of
from baechi.torchlib.shards.move import set_data
from baechi.torchlib.shards.weight import FUNCTIONS, ShardedWeight, refuse

_Tensor: Any = torch.Tensor


def _sum(tensor: ShardedWeight, *args: Any, **kwargs: Any) -> torch.Tensor:
    if args or kwargs or not isinstance(tensor, ShardedWeight):
        refuse("a sum along an axis of", tensor)
    return _added([shard.sum() for shard in shards_of(tensor)])


def _mean(tensor: ShardedWeight, *args: Any, **kwargs: Any) -> torch.Tensor:
    return _sum(tensor, *args, **kwargs) / tensor.numel()


def _added(numbers: list[torch.Tensor]) -> torch.Tensor:
    total = numbers[0]
    for number in numbers[1:]:
        total = total + number.to(numbers[0].device)
    return total


def _without_storage(tensor: ShardedWeight, *_: Any, **__: Any) -> NoReturn:
    refuse("asking for the storage of", tensor)


def _shared(tensor: ShardedWeight) -> NoReturn:
    refuse("sharing with other processes", tensor)


_OWN: dict[Any, Callable[..., Any]] = {
    torch.sum: _sum,
    _Tensor.sum: _sum,
    torch.mean: _mean,
    _Tensor.mean: _mean,
    _Tensor.data.__get__: lambda tensor: tensor.detach(),
    _Tensor.data.__set__: set_data,
    _Tensor.untyped_storage: _without_storage,
    _Tensor.storage: _without_storage,
    _Tensor.data_ptr: _without_storage,
    _Tensor.share_memory_: _shared,
    torch.is_complex: lambda tensor: tensor.shards[0].is_complex(),  # which optimizers ask at each step
}
"""By torch function, what it does on a sharded tensor."""


def take_functions() -> None:
    """Let sharded tensors do these."""
    FUNCTIONS.update(_OWN)
