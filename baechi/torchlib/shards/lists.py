"""Operators of lists (`torch.optim` with `foreach` or `fused`, clipping): one call for each device.

given    [weight a, weight b in shards on 0 and 1]
runs     device 0: [a, b's first shard]     device 1: [b's second shard]
"""

from collections.abc import Sequence
from typing import Any

import torch

from baechi.torchlib.private.operators import schema_of
from baechi.torchlib.shards.tensor import norm_of_norms, plain_parts, together
from baechi.torchlib.shards.weight import ShardedWeight, refuse

Member = tuple[int, int | None]
"""The place in a list, and the number of the shard; None for a plain tensor."""


def run_lists(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a `_foreach` operator."""
    likes = _likes(func, args)
    groups: dict[Any, list[int]] = {}
    flat = [_flat(value, likes) for value in args]
    members = _members(args[0], likes)
    for place, tensor in enumerate(flat[0]):
        groups.setdefault(tensor.device, []).append(place)
    made: dict[Member, Any] = {}
    for device, places in groups.items():
        own = [_there(value, places, device) for value in flat]
        result = func(*own, **kwargs)
        if result is not None:
            made.update(zip([members[place] for place in places], result, strict=True))
    _count([tensor for tensor in args[0] if isinstance(tensor, ShardedWeight)], func)
    if not made:
        return None
    return [_result(func, args, made, index, like) for index, like in enumerate(likes)]


def _likes(func: Any, args: Any) -> list[ShardedWeight | None]:
    """By place in the lists, a sharded tensor that stands there, if there is one."""
    lists = [value for value in args if isinstance(value, (list, tuple)) and value]
    likes = [
        next((one for one in row if isinstance(one, ShardedWeight)), None) for row in zip(*lists, strict=True)
    ]
    if schema_of(func).is_mutable:
        for tensor, like in zip(args[0], likes, strict=True):
            if like is not None and not isinstance(tensor, ShardedWeight):
                refuse(f"writing a whole tensor with {func} from", like)
    return likes


def _members(first: Sequence[Any], likes: list[ShardedWeight | None]) -> list[Member]:
    """The place in the list, and the shard, of each entry when shards stand in place of what they make up."""
    members: list[Member] = []
    for index, like in zip(range(len(first)), likes, strict=True):
        members += [(index, None)] if like is None else [(index, n) for n in range(len(like.shards))]
    return members


def _flat(value: Any, likes: list[ShardedWeight | None]) -> Any:
    """A list with shards in place of what they make up; other values as they are."""
    if not isinstance(value, (list, tuple)) or not value:
        return value
    entries: list[Any] = []
    for one, like in zip(value, likes, strict=True):
        if like is None:
            entries.append(one)
        elif isinstance(one, ShardedWeight):
            if like.lies != one.lies:
                refuse(f"an operation with one that is cut elsewhere ({one!r}) on", like)
            entries += one.shards
        elif isinstance(one, torch.Tensor) and one.dim():
            entries += like.beside(one)
        else:
            entries += [one] * len(like.shards)
    return entries


def _there(value: Any, places: list[int], device: Any) -> Any:
    """What of an argument goes to one device."""
    if isinstance(value, list) and value:
        return [value[place] for place in places]
    if isinstance(value, torch.Tensor) and (value.dim() or value.device.type != "cpu"):
        return value.to(device)
    return value


def _result(func: Any, args: Any, made: dict[Member, Any], index: int, like: ShardedWeight | None) -> Any:
    if like is None:
        return made[index, None]
    shards = [made[index, number] for number in range(len(like.shards))]
    name = func.overloadpacket.__name__
    if "norm" in name:
        return norm_of_norms(shards, args[1] if len(args) > 1 else 2)
    if name == "_foreach_max":
        return together(shards).amax(0)
    return made_like(like, shards, func)


def made_like(like: ShardedWeight, shards: Sequence[torch.Tensor], func: Any) -> ShardedWeight:
    """What an operator made of each shard, as one sharded tensor."""
    if any([made.shape != shard.shape for made, shard in zip(shards, like.shards, strict=True)]):
        refuse(f"aten.{func.overloadpacket.__name__}, whose result has another shape than", like)
    return like.like(shards)


def run_fused(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Run a `_fused` optimizer's operator."""
    columns = [_flat(value, _likes(func, args)) for value in args]
    groups: dict[Any, list[int]] = {}
    for place, tensor in enumerate(columns[0]):
        groups.setdefault((tensor.device, tensor.dtype), []).append(place)
    for (device, _), places in groups.items():
        own = [[column[place] for place in places] if column else column for column in columns]
        named = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in kwargs.items()
        }
        func(*own, **named)
    _count([tensor for tensor in args[0] if isinstance(tensor, ShardedWeight)], func)


def unscale_lists(func: Any, args: Any) -> None:
    """Run what a `GradScaler` unscales gradients with."""
    grads, found, inverse = args
    flat = [shard for grad in grads for shard in plain_parts(grad)]
    groups: dict[Any, list[torch.Tensor]] = {}
    for shard in flat:
        groups.setdefault((shard.device, shard.dtype), []).append(shard)
    for (device, _), shards in groups.items():
        here = found if found.device == device else torch.zeros_like(found.to(device))
        func(shards, here, inverse.to(device))
        if here is not found:
            found.copy_(torch.maximum(found, here.to(found.device)))
    _count([grad for grad in grads if isinstance(grad, ShardedWeight)], func)


def _count(written: list[ShardedWeight], func: Any) -> None:
    """No operator of lists is counted by torch on a tensor of ours, nor on its shards."""
    if schema_of(func).is_mutable and written:
        shards: list[torch.Tensor] = [shard for tensor in written for shard in tensor.shards]
        torch.autograd.graph.increment_version([*written, *shards])
