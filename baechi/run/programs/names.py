"""Which run of the plan each operation of a captured graph belongs to."""

from typing import Any

import torch
from torch import fx, nn

from baechi.records.pipeline.units import NOWHERE, Units
from baechi.records.plan import Plan
from baechi.torchlib.private.graphs import tensor_of

RUN = "baechi_run"
"""Of an operation's notes that survive tracing (`custom`), the one that says its run."""

BLOCK = "baechi_block"
"""As `RUN`, the one that says which of several like modules in a row it is in; missing if in none."""

REGION = "baechi_region"
"""As `RUN`, the one that says which call, of a module or of torch's checkpoint, it runs again with."""

_LIKE = 3
"""So many modules of a class in one container are worth being compiled once for all."""

_NO_OPERATION = ("placeholder", "output", "get_attr")


def note_runs(module: fx.GraphModule, model: nn.Module, plan: Plan, units: Units) -> None:
    """Note the run of each operation of a captured graph.

    An operation of a layer belongs to the layer's run. Others (views, masks, functional ops) belong to the
    first run that follows all that they read, else to that of their first reader. None reads from a later
    run. Where one reads a buffer that the plan gave to a functional op, that op's run counts, too: there the
    buffer is written.
    """
    followed = _followed(units)
    run_of_buffer = _runs_of_buffers(model, plan, units)
    run_of_layer = {
        name: run
        for name, run in zip(plan.graph.code_order(), units.run_of, strict=True)
        if run != NOWHERE and plan.graph.costs(name).kind == "layer"
    }
    path_of: dict[str, str] = {}
    for path, one in model.named_modules():
        path_of.setdefault(str(id(one)), path)
    blocks, again, regions = _blocks(model), frozenset(plan.recompute), _checkpointed(module)
    for inside in module.modules():  # those of a checkpointed region are in a graph of their own
        for node in _operations(inside):
            if blocks:
                _note_module(node, BLOCK, path_of, blocks)
            if inside in regions:
                _note(node, REGION, regions[inside])
            if again:
                _note_module(node, REGION, path_of, again)
            own = None if inside is module else _run_of(node, path_of, run_of_layer)
            if own is not None:
                _note(node, RUN, own)
    operations, runs = _operations(module), dict[fx.Node, int]()
    for node in operations:
        inner = [_last_run(one) for one in _graphs_of(node)]
        run = max(inner, default=None) or _run_of(node, path_of, run_of_layer)
        before = [runs[one] for one in node.all_input_nodes if one in runs]
        if run is None:
            buffers = map(_buffer, node.all_input_nodes)
            before += [run_of_buffer[one] for one in buffers if one in run_of_buffer]
        if run is not None:
            runs[node] = max([*before, run])
        elif before:
            runs[node] = _meeting(before, followed)
    for node in reversed(operations):
        if node not in runs:
            runs[node] = min([runs[one] for one in node.users if one in runs], default=0)
    for node in operations:
        runs[node] = max([runs[node], *[runs[one] for one in node.all_input_nodes if one in runs]])
        _note(node, RUN, runs[node])


def _followed(units: Units) -> list[set[int]]:
    """By run, itself and those that it follows, at once or by others."""
    found: list[set[int]] = []
    for run, after in enumerate(units.forward_after):
        found.append({run}.union(*[found[one] for one in after]))
    return found


def _meeting(runs: list[int], followed: list[set[int]]) -> int:
    """The first run that follows all of these: where two towers meet it is none of theirs.

    In the last of them the other towers' backward would come behind that one's, and run on its device.
    """
    last = max(runs)
    return next((run for run in range(last, len(followed)) if followed[run].issuperset(runs)), last)


def _runs_of_buffers(model: nn.Module, plan: Plan, units: Units) -> dict[int, int]:
    """By `id`, the run of each buffer that belongs to a functional op."""
    buffers, found = dict(model.named_buffers(remove_duplicate=False)), dict[int, int]()
    for name, run in zip(plan.graph.code_order(), units.run_of, strict=True):
        costs = plan.graph.costs(name)
        if run != NOWHERE and costs.kind == "glue":
            found.update({id(buffers[one]): run for one in costs.weights or () if one in buffers})
    return found


def _buffer(node: fx.Node) -> int:
    """The `id` of the tensor that an input of the graph is."""
    return id(tensor_of(node) if node.op == "placeholder" else None)


def _note(node: fx.Node, name: str, value: int | str) -> None:
    node.meta["custom"] = {**node.meta.get("custom", {}), name: value}


def _operations(module: nn.Module) -> list[fx.Node]:
    if not isinstance(module, fx.GraphModule):
        return []
    return [node for node in module.graph.nodes if node.op not in _NO_OPERATION]


def _graphs_of(node: fx.Node) -> list[fx.GraphModule]:
    """The graphs that an operation runs."""
    owner, found = node.graph.owning_module, []
    for one in node.all_input_nodes if owner is not None else ():
        held = getattr(owner, str(one.target), None) if one.op == "get_attr" else None
        if isinstance(held, fx.GraphModule):
            found.append(held)
    return found


def _checkpointed(module: fx.GraphModule) -> dict[nn.Module, str]:
    """The regions that torch's checkpoint runs, by graph; one within another belongs to the outer."""
    found = dict[nn.Module, str]()
    for outer in module.modules():
        for node in _operations(outer):
            if node.target is torch.ops.higher_order.tag_activation_checkpoint:
                name = f"checkpoint {len(found)}"
                for inside in [one for region in _graphs_of(node) for one in region.modules()]:
                    found.setdefault(inside, name)
    return found


def _last_run(module: fx.GraphModule) -> int:
    """The last run of what a graph does, with the graphs inside of it."""
    nodes = [node for one in module.modules() for node in _operations(one)]
    return max([node.meta.get("custom", {}).get(RUN, 0) for node in nodes], default=0)


def _blocks(model: nn.Module) -> frozenset[str]:
    """The paths of modules that have like ones beside them."""
    found = set[str]()
    for path, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            inside = [
                (name, type(one)) for name, one in module.named_children() if next(one.children(), None)
            ]
            kinds = [kind for _, kind in inside]
            begin = f"{path}." if path else ""
            found.update([f"{begin}{name}" for name, kind in inside if kinds.count(kind) >= _LIKE])
    return frozenset(found)


def _note_module(node: fx.Node, name: str, path_of: dict[str, str], wanted: frozenset[str]) -> None:
    """Note which call of the outermost of some modules an operation is in."""
    stack: dict[Any, Any] = node.meta.get("nn_module_stack") or {}
    for key in stack:
        path = path_of.get(str(key).partition("@")[0])
        if path in wanted:
            _note(node, name, f"{path}@{key}")
            return


def _run_of(node: fx.Node, path_of: dict[str, str], run_of_layer: dict[str, int]) -> int | None:
    """The run of the layer that an operation is in; None if it is in none."""
    stack: dict[Any, Any] = node.meta.get("nn_module_stack") or {}
    for key in reversed(stack):
        ident, _, number = str(key).partition("@")
        path = path_of.get(ident)
        while path:
            for name in (f"{path}#{number}", path) if number else (path,):
                if name in run_of_layer:
                    return run_of_layer[name]
            path = path.rpartition(".")[0]
    return None
