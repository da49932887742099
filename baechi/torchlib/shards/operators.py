"""Operators of sharded weights, below autograd: by the table, else by their tags, else they raise.

    each, or tagged so    shard by shard, each on its device        add, mul, lerp, addcdiv, sqrt, ...
    lists, fused          one call a device (`lists`)               _foreach_*, _fused_*
    reduce, norm, dot     of each shard, then of these              norm, dot, sum, max, all
    random, in place      drawn whole on the host, as unsplit       normal_, uniform_
    copy                  shard by shard, or cut                    copy_

Writes are counted on the tensor and on its shards, so that a backward that needs older values raises.
"""

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from baechi.torchlib.private.autograd import NO_GRAPH_TASK, current_graph_task_id
from baechi.torchlib.private.operators import schema_of
from baechi.torchlib.shards.lists import made_like, run_fused, run_lists, unscale_lists
from baechi.torchlib.shards.streams import in_backward_on, streams_among
from baechi.torchlib.shards.table import Kind, kind_of
from baechi.torchlib.shards.tensor import norm_of_norms, together
from baechi.torchlib.shards.weight import ShardedWeight, refuse
from baechi.torchlib.tensors.pytree import tensors_in

aten: Any = torch.ops.aten

_NO_PLACE = ("device", "layout", "pin_memory")


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator that was given a sharded tensor."""
    if current_graph_task_id() == NO_GRAPH_TASK:
        result = _runner(func)(func, args, kwargs)
    else:
        with in_backward_on(streams_among(tensors_in((args, kwargs)))):
            result = _runner(func)(func, args, kwargs)
    if args and isinstance(args[0], ShardedWeight) and schema_of(func).is_mutable:
        torch.autograd.graph.increment_version(args[0].shards)  # what happens below autograd is not counted
    return result


@cache
def _runner(func: Any) -> Callable[[Any, Any, dict[str, Any]], Any]:
    name = func.overloadpacket.__name__
    kind = kind_of(name)
    if kind is None and torch.Tag.nondeterministic_seeded in func.tags and schema_of(func).is_mutable:
        return _drawn
    # torch does not tag all overloads of what goes element by element
    if kind is None and (torch.Tag.pointwise in func.tags or kind_of(name.removesuffix("_")) == "each"):
        return _pointwise
    return _refused if kind is None else _RUNNERS.get(kind, _refused)


def _refused(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensor = next(t for t in tensors_in((args, kwargs)) if isinstance(t, ShardedWeight))
    refuse(f"aten.{func.overloadpacket.__name__} on", tensor)


def _alike(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensor, kept = args[0], {name: value for name, value in kwargs.items() if name not in _NO_PLACE}
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != tensor.shards[0].device.type:
        refuse(f"moving to {device}", tensor)
    return tensor.like([func(shard, *args[1:], **kept) for shard in tensor.shards])


def _pointwise(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    like = next(value for value in itertools.chain(args, kwargs.values()) if isinstance(value, ShardedWeight))
    writes = schema_of(func).is_mutable
    if writes and not isinstance(args[0], ShardedWeight):
        refuse(f"writing a whole tensor with aten.{func.overloadpacket.__name__} from", like)
    for value in itertools.chain(args, kwargs.values()):
        if isinstance(value, ShardedWeight):
            if value.lies != like.lies:
                refuse(f"an operation with one that is cut elsewhere ({value!r}) on", like)
        elif isinstance(value, torch.Tensor) and value.dim() > len(like.lies[0]):
            refuse(f"an operation with a tensor of shape {tuple(value.shape)} on", like)
    made = like.each(func, args, kwargs, like.beside)
    return args[0] if writes else made_like(like, made, func)


def _drawn(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Random numbers are those of the whole tensor on the host."""
    tensor = args[0]
    whole = torch.empty(tensor.shape, dtype=tensor.dtype)
    func(whole, *args[1:], **kwargs)
    for shard, drawn in zip(tensor.shards, tensor.beside(whole), strict=True):
        shard.copy_(drawn)
    return tensor


def _copied(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    if not isinstance(target, ShardedWeight):
        target.copy_(source.on_host())
        return target
    if isinstance(source, ShardedWeight) and target.lies != source.lies:
        source = source.on_host()
    if not isinstance(source, ShardedWeight):
        source = source.expand(target.shape)
        cut = source.split(list(target.sizes), target.axis)
    else:
        cut = source.shards
    for shard, one in zip(target.shards, cut, strict=True):
        shard.copy_(one)
    return target


def _new(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensor, shape = args[0], list(args[1])
    kept = {name: value for name, value in kwargs.items() if name not in _NO_PLACE}
    if shape == list(tensor.shape):
        if func.overloadpacket is aten.new_empty_strided:
            return tensor.like([shard.new_empty(shard.shape, **kept) for shard in tensor.shards])
        return tensor.like([func(shard, list(shard.shape), *args[2:], **kept) for shard in tensor.shards])
    return func(tensor.shards[0], *args[1:], **kept)


def _viewed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func.overloadpacket is not aten.view:
        _refused(func, args, kwargs)
    tensor, shape = args[0], list(args[1])
    if shape != list(tensor.shape):
        refuse(f"a view of shape {shape} of", tensor)
    return tensor.like([shard.view(shard.shape) for shard in tensor.shards])


def _norm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensor, order = args[0], args[1] if len(args) > 1 and args[1] is not None else 2
    axes = args[2] if len(args) > 2 else kwargs.get("dim")
    if axes and len(axes) != tensor.dim():
        refuse("a norm along an axis of", tensor)
    norms = [torch.linalg.vector_norm(shard, order, dtype=kwargs.get("dtype")) for shard in tensor.shards]
    made = norm_of_norms(norms, order)
    keeps_axes = args[3] if len(args) > 3 else kwargs.get("keepdim", False)
    return made.view([1] * tensor.dim()) if keeps_axes else made


def _dot(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if not all(isinstance(value, ShardedWeight) for value in args) or args[0].lies != args[1].lies:
        _refused(func, args, kwargs)
    return together([func(*pair) for pair in zip(args[0].shards, args[1].shards, strict=True)]).sum()


def _reduced(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensor, *axes = args[:2]
    if any([axis is not None and axis != [] for axis in [*axes, kwargs.get("dim")]]):  # an empty list is all
        refuse(f"aten.{func.overloadpacket.__name__} along an axis of", tensor)
    keeps_axes = kwargs.pop("keepdim", args[2] if len(args) > 2 else False)
    made = func(together([func(shard, *axes, **kwargs) for shard in tensor.shards]), *axes, **kwargs)
    return made.view([1] * tensor.dim()) if keeps_axes else made


def _equal(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    one, other = args
    if isinstance(one, ShardedWeight) and isinstance(other, ShardedWeight) and one.lies == other.lies:
        return all(torch.equal(a, b) for a, b in zip(one.shards, other.shards, strict=True))
    wholes = [value.on_host() if isinstance(value, ShardedWeight) else value.cpu() for value in args]
    return torch.equal(wholes[0], wholes[1])


_RUNNERS: dict[Kind, Callable[[Any, Any, dict[str, Any]], Any]] = {
    "each": _pointwise,
    "alike": _alike,
    "new": _new,
    "view": _viewed,
    "copy": _copied,
    "reduce": _reduced,
    "norm": _norm,
    "dot": _dot,
    "equal": _equal,
    "lists": run_lists,
    "fused": run_fused,
    "unscale": lambda func, args, kwargs: unscale_lists(func, args),
    "same size": lambda func, args, kwargs: args[0].shape == args[1].shape,
    "pinned": lambda func, args, kwargs: False,
}
"""By what an operator does to shards, what runs it on a weight."""
