"""A tiny twin of a model in each way in which a model runs."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import networkx as nx
import torch
from torch import nn

import baechi
from baechi.dispatch.schedulers.round_robin import RoundRobin
from baechi.errors import PlanError
from baechi.measure.in_turn import Way, train
from baechi.measure.twins import Twin
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline, units_of
from baechi.records.plan import Plan
from baechi.run.assign import assign
from baechi.run.pipeline.microbatches import Microbatches

Mode = Literal["one device", "waiting", "microbatches", "split", "dispatch"]
MODES: tuple[Mode, ...] = get_args(Mode)

DEVICES = Cluster.virtual(2, memory="64GiB")
_PARTS = 2
_SHARDED = 6
"""So many products of a model are split, at most."""


def way_of(twin: Twin, mode: Mode) -> Way:
    """Make a twin run in a mode.

    Args:
        twin: the model.
        mode: how it runs.
    """
    model, inputs = twin.build(), twin.inputs()
    if mode == "dispatch":
        return Way(twin.name, mode, _dispatched(twin, model, inputs))
    if mode != "one device":
        model = _MAKERS[mode](model, inputs)
    run = partial(train, twin, model, inputs, torch.optim.Adam(model.parameters(), foreach=False))
    return Way(twin.name, mode, run, judged=mode == "microbatches")


def _dispatched(twin: Twin, model: nn.Module, inputs: dict[str, torch.Tensor]) -> Callable[[], object]:
    given = {name: value for name, value in inputs.items() if name != "labels"}
    rows = len(next(iter(given.values())))
    out: Any = (
        ("cat", 0) if twin.outputs else "mean"
    )  # found out by each call, it would take longer than the call
    made = baechi.dispatch(model.eval(), RoundRobin(2, DEVICES, batch_size=rows // 2), out=out)

    def run() -> object:
        with torch.no_grad():
            return made(**given)

    return run


def _profiled(model: nn.Module, inputs: Any, **asked: Any) -> LayerGraph:
    return baechi.profile(model, inputs, cluster=DEVICES, training=True, source="estimate", **asked)


def _waiting(model: nn.Module, inputs: Any) -> nn.Module:
    """On two devices at random; of layers that do not need each other, the code's last go first."""
    plan = baechi.place(_profiled(model, inputs), DEVICES, "random:1")
    number = {node: place for place, node in enumerate(plan.order)}
    needs: nx.DiGraph[str] = nx.DiGraph()
    needs.add_nodes_from(plan.graph.nodes)
    needs.add_edges_from(plan.graph.edges)
    order = [
        node
        for node in nx.lexicographical_topological_sort(needs, key=lambda node: -number.get(node, 0))
        if node in number
    ]
    return assign(model, replace(plan, order=tuple(order)), reorder="host")


def _pipelined(model: nn.Module, inputs: Any) -> nn.Module:
    """Half of the layers on each of two devices, forwards first."""
    graph = _profiled(model, inputs, microbatches=_PARTS)
    order = baechi.place(graph, DEVICES, "single").order
    first = {node: DEVICES.names[place >= len(order) // 2] for place, node in enumerate(order)}
    try:
        plan = Plan(graph, DEVICES, first, order)
    except PlanError:  # layers that share weights lie together
        plan = baechi.place(graph, DEVICES, "m-topo")
    split = Pipeline(plan, _PARTS, tuple(units_of(plan).tasks(_PARTS)))
    return assign(model, plan, reorder=False, microbatches=Microbatches(split))


def _tiled(model: nn.Module, inputs: Any) -> nn.Module:
    """Products in two shards each, as far as they can be split."""
    graph, done = _profiled(model, inputs), 0
    for name, module in model.named_modules():
        if name in graph and isinstance(module, (nn.Linear, nn.Embedding, nn.Conv2d)) and done < _SHARDED:
            try:
                graph, done = baechi.split(graph, name, 2), done + 1
            except (PlanError, ValueError):  # one that cannot be split stays whole
                continue
    return assign(model, baechi.place(graph, DEVICES, "random:1"), reorder=False)


_MAKERS: dict[Mode, Callable[[nn.Module, Any], nn.Module]] = {
    "waiting": _waiting,
    "microbatches": _pipelined,
    "split": _tiled,
}
