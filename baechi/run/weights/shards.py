"""Weights of split layers: which are cut, where their shards go, and back to wholes.

    head.weight (one Parameter)    ──▶    head.weight[0] on cpu:0    head.weight[1] on cpu:1    ...

Shards have names for plans only. From outside there is one parameter, under the name that it had.
"""

import functools
from collections.abc import Mapping

import torch

from baechi.backend import AbstractBackend
from baechi.split.cuts import Cut
from baechi.torchlib.fakes.valueless import is_valueless, made_valueless
from baechi.torchlib.modules.optimizer_state import state_beside
from baechi.torchlib.private.modes import without_dispatch_modes
from baechi.torchlib.shards.cut import cut, join_in_place, shard_in_place
from baechi.torchlib.shards.weight import ShardedWeight
from baechi.torchlib.tensors.storage import storage_object


def by_shard(weights: Mapping[str, torch.Tensor], cuts: Mapping[str, Cut]) -> dict[str, torch.Tensor]:
    """Weights by the names that plans have for them: shards in place of those that are cut."""
    found: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        if name not in cuts:
            found[name] = weight
            continue
        axis, sizes = cuts[name]
        shards = weight.shards if isinstance(weight, ShardedWeight) else weight.detach().split(sizes, axis)
        found.update({f"{name}[{number}]": shard for number, shard in enumerate(shards)})
    return found


def shard_weights(
    weights: Mapping[str, torch.Tensor],
    cuts: Mapping[str, Cut],
    planned: Mapping[str, str],
    backend: AbstractBackend,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Cut whole weights, with gradients and optimizer state, each shard on its device.

    Weights that share memory share their shards: tied ones that `load_state_dict(assign=True)` made two.
    """
    whole = {name: weights[name] for name in cuts if name in weights}
    whole = {name: weight for name, weight in whole.items() if not isinstance(weight, ShardedWeight)}
    memory = {name: _memory_of(weight) for name, weight in whole.items()}
    shared: dict[tuple[object, ...], list[torch.Tensor]] = {}
    for name, weight in whole.items():
        if isinstance(weight, ShardedWeight):  # under another name
            continue
        axis, sizes = cuts[name]
        devices = [planned[f"{name}[{number}]"] for number in range(len(sizes))]
        place = functools.partial(_placed, backend, devices)
        grad = weight.grad
        beside = [value for value in _beside(weight, optimizer) if not isinstance(value, ShardedWeight)]
        key = (memory[name], axis, tuple(sizes), *devices)
        with without_dispatch_modes():
            made = (
                ShardedWeight(list(shared[key]), axis) if key in shared else cut(weight, sizes, axis, place)
            )
            shared[key] = list(made.shards)
            parts = [cut(value, sizes, axis, place) for value in beside]
        for value, shards in zip(beside, parts, strict=True):
            shard_in_place(value, shards)
        shard_in_place(weight, made)
        weight.grad = grad


def _memory_of(weight: torch.Tensor) -> object:
    """Which memory a weight has: asked before any is cut."""
    return id(storage_object(weight)), weight.storage_offset(), weight.shape, weight.stride()


def _placed(backend: AbstractBackend, devices: list[str], view: torch.Tensor, number: int) -> torch.Tensor:
    """A shard of its own, on its device; one on `meta` stays there."""
    if is_valueless(view):
        made = made_valueless(torch.empty(view.shape, dtype=view.dtype))
    else:
        made = view.clone(memory_format=torch.contiguous_format)
    return made if made.is_meta else backend.move_weights([made], devices[number])[0]


def join_weights(weights: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer | None) -> None:
    """Make sharded weights, their gradients and optimizer state, plain tensors on the host."""
    for weight in weights.values():
        if isinstance(weight, ShardedWeight):
            grad = weight.grad
            for value in _beside(weight, optimizer):
                if isinstance(value, ShardedWeight):
                    join_in_place(value, value.on_host())
            whole = torch.cat(weight.shards, weight.axis) if weight.shards[0].is_meta else weight.on_host()
            join_in_place(weight, whole)
            weight.grad = grad


def _beside(weight: torch.Tensor, optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """The gradient and the optimizer state of a weight, as far as they have its shape."""
    state = [] if optimizer is None else state_beside(optimizer, weight)
    found = [value for value in [weight.grad, *state] if value is not None and value.shape == weight.shape]
    return list({id(value): value for value in found}.values())
