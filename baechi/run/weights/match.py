"""Check that a plan belongs to a model, and find the planned device of each of its weights."""

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from baechi.errors import PlanError
from baechi.records.device_map import ROOT
from baechi.records.plan import Plan
from baechi.run.weights.match_shards import shard_faults
from baechi.run.weights.shards import by_shard
from baechi.split.cuts import Cut, cuts_of
from baechi.torchlib.tensors.spans import held_bytes
from baechi.torchlib.tensors.storage import storage_object


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer by qualified name; tied weights have several names."""
    weights: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    weights.update(model.named_buffers(remove_duplicate=False))
    return weights


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by qualified name, shared ones under each of their names; the root is `(root)`."""
    return {name or ROOT: module for name, module in model.named_modules(remove_duplicate=False)}


def has_weights(module: nn.Module) -> bool:
    """Whether a module, or one below it, has parameters or buffers."""
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


def match_weights(model: nn.Module, plan: Plan) -> dict[str, str]:
    """Check that a plan belongs to a model, and return the planned device of each weight."""
    whole, modules = weights_of(model), modules_of(model)
    faults = list(_module_faults(plan, modules))
    cuts = cuts_of(plan.graph)
    faults += [*shard_faults(plan.graph, modules), *_cut_faults(cuts, whole)]
    weights = whole if faults else by_shard(whole, cuts)
    planned: dict[str, str] = {}
    sizes = held_bytes(weights.values())
    for node in plan.graph.placed():
        names = _weights_of_node(plan, node, weights)
        absent = [name for name in names if name not in weights]
        faults += [f"the plan's weight {name} (of {node}) is not in the model" for name in absent]
        planned.update({name: plan.device_of[node] for name in names})
        costs = plan.graph.costs(node)
        if not absent and costs.weights is not None and costs.shard is None:
            own = {id(storage_object(weights[name])) for name in names}  # tied weights count once
            faults += _size_faults(plan, node, sum([sizes[storage] for storage in own]))
    faults += [f"the model's weight {name} is not in the plan" for name in weights if name not in planned]
    if faults:
        shown = tuple(faults[:12]) + ((f"and {len(faults) - 12} more",) if len(faults) > 12 else ())
        model_name = type(model).__name__
        raise PlanError(f"the plan does not match this {model_name}: make one with baechi.profile", shown)
    return planned


def planned_devices(plan: Plan, weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The planned device of each weight, unchecked; weights that the plan does not know are left out."""
    planned: dict[str, str] = {}
    for node in plan.graph.placed():
        planned.update({name: plan.device_of[node] for name in _weights_of_node(plan, node, weights)})
    return planned


def _weights_of_node(plan: Plan, node: str, weights: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of a node's weights: as the graph lists them; without a list, all below the node's module."""
    costs = plan.graph.costs(node)
    if costs.weights is not None:
        return list(costs.weights)
    if costs.kind != "layer":
        return []
    module = plan.graph.module_of(node)
    below = "" if module == ROOT else f"{module}."
    return [name for name in weights if name.startswith(below)]


def _module_faults(plan: Plan, modules: Mapping[str, nn.Module]) -> list[str]:
    """The plan's layers that the model lacks, or has as another class."""
    faults = []
    for node, costs in plan.graph.placed_costs():
        if costs.kind != "layer" or costs.joins is not None or costs.broadcasts is not None:
            continue
        if costs.shard is not None:
            name = costs.shard["of"]
            if name not in modules and "function" not in costs.shard:
                faults.append(f"the plan's split layer {name} is not in the model")
            continue
        name = plan.graph.module_of(node)
        module = modules.get(name)
        if module is None:
            faults.append(f"the plan's layer {name} is not in the model")
        elif costs.type is not None and type(module).__name__ != costs.type:
            faults.append(f"layer {name} is a {type(module).__name__}, the plan has a {costs.type}")
    return faults


def _cut_faults(cuts: Mapping[str, Cut], weights: Mapping[str, torch.Tensor]) -> list[str]:
    """Weights that are not as long as the shards that a plan cuts them into."""
    return [
        f"{name} has the shape {tuple(weights[name].shape)}: the plan cuts {sum(sizes)} along axis {axis}"
        for name, (axis, sizes) in cuts.items()
        if name in weights and dict(_lengths(weights[name])).get(axis) != sum(sizes)
    ]


def _lengths(weight: torch.Tensor) -> Iterator[tuple[int, int]]:
    """By axis, counted from either end, how long a weight is."""
    for axis, length in enumerate(weight.shape):
        yield axis, length
        yield axis - weight.dim(), length


def _size_faults(plan: Plan, node: str, own_bytes: int) -> list[str]:
    """A node whose weights take other bytes than planned."""
    planned_bytes = plan.graph.amount(node, "param_bytes") + plan.graph.amount(node, "buffer_bytes")
    if own_bytes != planned_bytes:
        return [f"the weights of {node} take {own_bytes} bytes, the plan has {planned_bytes:.0f}"]
    return []
