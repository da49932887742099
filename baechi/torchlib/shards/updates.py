"""An optimizer's update of lists of weights: shards stand in the lists in place of what they make up.

given    [weight a, weight b in shards]     state of each     one step count each
runs     [a, b's first shard, b's second]   their state       the count, and copies of it

So an update costs what it costs for as many plain weights: no operator sees a sharded tensor.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from baechi.torchlib.dynamo import uncompiled
from baechi.torchlib.private.patches import UPDATES
from baechi.torchlib.shards.tensor import plain_parts
from baechi.torchlib.shards.weight import ShardedWeight, refuse

Update = Callable[..., None]


def teach_updates() -> None:
    """Let the updates of torch's elementwise optimizers take sharded weights; done once."""
    for place in UPDATES:
        if place.exists:
            place.put(_by_shards(place.original))


def _by_shards(update: Update) -> Update:
    names = tuple(inspect.signature(update).parameters)[1:]

    @functools.wraps(update)
    def updated(params: Sequence[torch.Tensor], *given: Any, **options: Any) -> None:
        if ShardedWeight in map(type, params):
            named = {**dict(zip(names, given, strict=False)), **options}
            if not named.get("differentiable"):
                _run(update, params, named, gradients=names[0])
                return
        update(params, *given, **options)

    return updated


@uncompiled
def _run(update: Update, params: Sequence[Any], given: dict[str, Any], gradients: str) -> None:
    columns, written = dict(given), [weight for weight in params if type(weight) is ShardedWeight]
    for name, value in given.items():  # at each step, so what is no list costs one look
        if type(value) is list and value:
            columns[name] = flat = []
            for weight, one in zip(params, value, strict=True):
                if type(weight) is not ShardedWeight:
                    flat.append(one)
                elif type(one) is ShardedWeight and one.lies == weight.lies:
                    flat += one.shards
                    written.append(one)
                else:
                    flat += _beside(weight, one, gradient=name == gradients)
    update([shard for weight in params for shard in plain_parts(weight)], **columns)
    for name, before in given.items():
        if columns[name] is not before and any([one is None for one in before]):
            _put_where_none_was(before, columns[name], params)
    torch.autograd.graph.increment_version(written)  # torch has counted the writes of the shards


def _beside(weight: ShardedWeight, one: Any, *, gradient: bool) -> list[Any]:
    """What stands beside each shard of a weight, of what is not cut as the weight is."""
    if one is None:
        return [None] * len(weight.shards)
    if type(one) is ShardedWeight:
        refuse(f"an update by one that is cut elsewhere ({one!r}) of", weight)
    if not one.dim():  # the same for all shards; each write counts once
        if one.device.type == "cpu":
            return [one, *[one.clone() for _ in weight.shards[1:]]]
        return [one, *[one.to(shard.device, copy=True) for shard in weight.shards[1:]]]
    if not gradient:
        refuse("state that is whole beside", weight)
    return weight.beside(one)


def _put_where_none_was(before: list[Any], after: list[Any], params: Sequence[Any]) -> None:
    """Put state that an update has made into a list, in shards where its weight is."""
    start = 0
    for index, weight in enumerate(params):
        stop = start + len(plain_parts(weight))
        if before[index] is None and after[start] is not None:
            whole = type(weight) is not ShardedWeight
            before[index] = after[start] if whole else weight.like(after[start:stop])
        start = stop
