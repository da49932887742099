"""Put shards behind a tensor, and the whole again: the object stays, with hooks, attributes and gradient."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from baechi.torchlib.shards.files import written_form
from baechi.torchlib.shards.functions import take_functions
from baechi.torchlib.shards.move import moved
from baechi.torchlib.shards.operators import run
from baechi.torchlib.shards.optimizers import teach_optimizers
from baechi.torchlib.shards.weight import BEHAVIOUR, ShardedWeight
from baechi.torchlib.tensors.swap_memory import exchange_kind

_FORMER = "_former_class"
"""The attribute with the class that a tensor had before it was split."""

_IS_PARAMETER = "_is_param"
"""The attribute by which `isinstance(tensor, nn.Parameter)` knows a parameter of another class."""

take_functions()
BEHAVIOUR.update({"to": moved, "write": written_form, "operator": run})

Shard = Callable[[torch.Tensor, int], torch.Tensor]
"""From a view of the whole and the number of a shard to a tensor of its own, where that shard goes."""


def cut(tensor: torch.Tensor, sizes: Sequence[int], axis: int, place: Shard) -> ShardedWeight:
    """A sharded tensor with the values of a plain one."""
    views = tensor.detach().split(list(sizes), axis)
    return ShardedWeight([place(view, number) for number, view in enumerate(views)], axis)


def shard_in_place(tensor: torch.Tensor, shards: ShardedWeight) -> None:
    """Put shards behind a plain tensor. The gradient of a leaf is gone afterwards."""
    teach_optimizers()
    former = type(tensor)
    attributes = {"shards": shards.shards, "axis": shards.axis, "lies": shards.lies, _FORMER: former}
    if issubclass(former, nn.Parameter):
        attributes[_IS_PARAMETER] = True
    exchange_kind(tensor, shards, ShardedWeight, attributes)


def refill(tensor: ShardedWeight, shards: Sequence[torch.Tensor]) -> None:
    """Put other shards behind a tensor, on any type of device."""
    made = tensor.like(shards)
    exchange_kind(tensor, made, ShardedWeight, {"shards": made.shards, "axis": made.axis, "lies": made.lies})


def join_in_place(tensor: ShardedWeight, whole: torch.Tensor) -> None:
    """Put a plain tensor behind one in shards. The gradient of a leaf is gone afterwards."""
    parameter = isinstance(tensor, nn.Parameter)
    former = vars(tensor).get(_FORMER, nn.Parameter if parameter else torch.Tensor)
    gone = dict.fromkeys(["shards", "axis", "lies", "streams", _FORMER, _IS_PARAMETER])
    exchange_kind(tensor, whole, former, gone)
