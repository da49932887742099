"""Move weights back to their planned devices before a call: copying, loading or casting may misplace them."""

from collections.abc import Mapping

import torch
from torch import nn

from baechi.backend import AbstractBackend
from baechi.errors import BaechiError
from baechi.records.device_map import ROOT
from baechi.run.binding import Binding
from baechi.run.runtime import Runtime
from baechi.run.weights.match import planned_devices, weights_of
from baechi.run.weights.move import move
from baechi.run.weights.shards import by_shard, shard_weights
from baechi.torchlib.shards.tensor import plain_parts
from baechi.torchlib.shards.weight import ShardedWeight


def settled(module: nn.Module, binding: Binding) -> Runtime:
    """Make sure that a module's weights are on their planned devices, and that their bytes are counted.

    On real devices a copied weight lies where the original lay. On emulated devices a mark on the storage
    says where a tensor lies. A deep copy or a pickle of a buffer loses the mark, and so does
    `model.half()` outside `with cluster:`. Weights that were on `meta` when the model was assigned may
    have been replaced since by weights on any device.
    """
    runtime = binding.runtime
    # a session is one `with cluster:` of an emulated cluster: each one counts the weights' bytes anew
    new_session = runtime.session is not runtime.backend.session
    if new_session or not runtime.settled:
        prefix = "" if binding.name == ROOT else f"{binding.name}."
        weights = {f"{prefix}{name}": weight for name, weight in weights_of(module).items()}
        _refuse_meta(weights)
        cuts = runtime.cuts
        planned = planned_devices(runtime.plan, by_shard(weights, cuts))
        shard_weights(weights, cuts, planned, runtime.backend, runtime.optimizer())
        grads = {name: weights[name].grad for name in cuts if name in weights}
        made = {name: grad for name, grad in grads.items() if grad is not None}
        for tensors in (by_shard(weights, cuts), by_shard(made, cuts)):
            misplaced = {
                name: tensor
                for name, tensor in tensors.items()
                if name in planned and _is_misplaced(runtime.backend, tensor, planned[name])
            }
            move(misplaced, planned, runtime.backend)
        runtime.settled = binding.name == ROOT
    if new_session:
        held = weights_of(module).values()
        grads_held = [t.grad for t in held if t.is_leaf and t.grad is not None]
        runtime.backend.count(shard for one in [*held, *grads_held] for shard in plain_parts(one))
        if binding.name == ROOT:
            runtime.session = runtime.backend.session
    return runtime


def why_elsewhere(model: nn.Module, binding: Binding) -> str:
    """Which weights lie elsewhere than they are read, after they were replaced; empty if none does.

    A call looks for it only once it has failed: `layer.weight = nn.Parameter(...)`, `weight.data = ...`, an
    adapter that is merged or a module that is added tell nobody.
    """
    runtime, prefix = binding.runtime, "" if binding.name == ROOT else f"{binding.name}."
    backend, cuts = runtime.backend, runtime.cuts
    weights = {f"{prefix}{name}": weight for name, weight in weights_of(model).items()}
    weights = by_shard(
        weights, {name: cut for name, cut in cuts.items() if type(weights.get(name)) is ShardedWeight}
    )
    planned = planned_devices(runtime.plan, weights)
    used = runtime.plan.devices_used
    if len(used) == 1:  # what was added lies where all else does
        planned = {name: planned.get(name, used[0]) for name in weights}
    found = [
        f"{name} lies on {_in_words(backend, weights[name])}, not on {place}"
        for name, place in planned.items()
        if not weights[name].is_meta and backend.place_of(weights[name]) != place
    ]
    if not found:
        return ""
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return (
        f"{', '.join(found[:3])}{more}: it was replaced after the model was distributed. Write into the old "
        "one (weight.copy_ under torch.no_grad, load_state_dict), move the new one there first, or call "
        "baechi.restore(model), change it, and distribute it again"
    )


def _in_words(backend: AbstractBackend, weight: torch.Tensor) -> str:
    place = backend.place_of(weight)
    return "the host" if place == backend.host else place


def _is_misplaced(backend: AbstractBackend, weight: torch.Tensor, planned: str) -> bool:
    """Whether a weight, or its gradient (of a backward outside `with cluster:`), is not where planned."""
    grad = weight.grad if weight.is_leaf else None
    return backend.place_of(weight) != planned or (grad is not None and backend.place_of(grad) != planned)


def _refuse_meta(weights: Mapping[str, torch.Tensor]) -> None:
    empty = [name for name, weight in weights.items() if weight.is_meta]
    if empty:
        names = ", ".join(empty[:5]) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        raise BaechiError(
            f"weights on the meta device have no values: {names}; load them (baechi.load) before it runs"
        )
