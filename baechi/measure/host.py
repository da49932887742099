"""What baechi's own runtime takes of this machine's host: differences between small models.

    layer call      a chain of layers through the runtime  -  the same chain as plain torch
    functional op   the same, of functional ops
    waiting         two chains, the layers of one each after one of the other  -  the same, in code order
    transfer        a chain that changes device after each layer  -  a chain that stays

The layers are tiny, so next to nothing is computed. The devices are those of a cluster, or emulated ones
outside of `with cluster:`, so that nothing is emulated. Each way runs in turn within a round, so that noise
hits all of them; medians over the rounds are subtracted. Processor time is measured, so other work on the
machine does not count.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from statistics import median
from typing import Any

import networkx as nx
import torch
from torch import nn

from baechi.backend import backend_of, unwatched
from baechi.measure.in_turn import with_torch_measured
from baechi.records.cluster import Cluster
from baechi.records.device import HostCosts
from baechi.records.graph import LayerGraph
from baechi.records.lazy_imports import lazy_import
from baechi.records.pipeline import Pipeline, units_of
from baechi.records.plan import Plan

LAYERS = 100

_FEATURES = 4
_PARTS = 2  # microbatches
_WARM_UP = 3  # the first rounds fill caches


def host(*, rounds: int = 30, layers: int = LAYERS, cluster: Cluster | None = None) -> HostCosts:
    """Measure what torch and the runtime take of the host for each thing that they do.

    Of the runtime what a chain of layers shows; the rest is as usual (`HostCosts.usual`). The bench
    `witness` (`tests/benches/`) fits all of it to whole steps of models.
    """
    devices = cluster or Cluster.virtual(2)
    if rounds < 1 or layers < 4 or layers % 2:
        raise ValueError(
            f"{rounds} rounds of {layers} layers: it takes 1 round, and an even number from 4 on"
        )
    if len(devices) < 2:
        raise ValueError(f"{devices.names}: a transfer takes two devices: give a cluster of at least two")
    with unwatched():
        own = _costs(_medians(_ways(layers, devices), rounds), layers)
        return with_torch_measured(own, rounds=rounds)


@dataclass(frozen=True)
class _Way:
    """A model that is timed.

    Args:
        run: runs its forward.
        training: whether autograd records it, and its backward runs.
    """

    run: Callable[[], Any]
    training: bool = False


class _Layer(nn.Module):
    """Copies, which every kind of device does fast."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))  # without one it would lie nowhere

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


class _Product(_Layer):
    """Multiplies with its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(_FEATURES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight)


class _Chain(nn.Module):
    def __init__(self, layers: int, ops: int = 0, kind: type[_Layer] = _Layer) -> None:
        super().__init__()
        self.layers = nn.ModuleList([kind() for _ in range(layers)])
        self.ops = ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        for _ in range(self.ops):
            x = x + 1
        return x


class _Loss(nn.Module):
    def __init__(self, chain: _Chain) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.chain(x).sum()
        return loss


class _Pair(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.left, self.right = (_Chain(layers // 2).layers for _ in range(2))
        self.last = _Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = right = x
        for one, other in zip(self.left, self.right, strict=True):
            left, right = one(left), other(right)
        out: torch.Tensor = self.last(left + right)
        return out


def _ways(layers: int, cluster: Cluster) -> dict[str, _Way]:
    """The models by name; a chain is halved between two devices unless it is said otherwise."""
    on, home = partial(_assigned, cluster), backend_of(cluster).kernel_device(cluster.names[0]) or "cpu"
    x = torch.ones(2, _FEATURES, device=home, requires_grad=True)

    def chain(count: int, ops: int = 0) -> nn.Module:
        return on(_Chain(count, ops), [number >= count // 2 for number in range(count)])

    zigzag = [number % 2 == 1 for number in range(layers)]
    pair, half = [False] * layers + [True], layers // 2
    waits = [number for left in range(0, layers, 2) for number in (left + 1, left)] + [layers]  # right first
    found: dict[str, _Way] = {}
    for name, model in {
        "plain": _Chain(layers).to(home),
        "plain, short": _Chain(2).to(home),
        "plain, ops": _Chain(2, layers).to(home),
        "chain": chain(layers),
        "short": chain(2),
        "ops": chain(2, layers),
        "zigzag": on(_Chain(layers), zigzag),
        "pair": on(_Pair(layers), pair),
        "waiting": on(_Pair(layers), pair, waits),
        "waiting, threads": on(_Pair(layers), pair, waits, reorder="threads"),
    }.items():
        found[name] = _Way(lambda model=model: model(x))  # type: ignore[misc]
        if name in ("chain", "zigzag"):
            found[f"{name}, training"] = _Way(found[name].run, training=True)
    halves, rows = (
        [number >= half for number in range(layers)],
        torch.ones(_PARTS, _FEATURES, device=home, requires_grad=True),
    )
    for name, kind, far, apart in (
        ("tasks, chain", _Layer, halves, False),
        ("tasks, zigzag", _Layer, zigzag, False),
        ("weights, whole", _Product, halves, False),
        ("weights, apart", _Product, halves, True),
    ):
        split = _pipelined(cluster, _Loss(_Chain(layers, kind=kind)), far, apart=apart)
        found[name] = _Way(lambda model=split: model(rows), training=True)  # type: ignore[misc]
    return found


def _assigned(
    cluster: Cluster,
    model: nn.Module,
    far: Iterable[bool],
    order: Iterable[int] | None = None,
    reorder: Any = "host",
) -> nn.Module:
    """The model on two devices."""
    made: nn.Module = lazy_import("assign")(model, _plan(cluster, model, far, order), reorder=reorder)
    return made


def _pipelined(cluster: Cluster, model: nn.Module, far: Iterable[bool], *, apart: bool) -> nn.Module:
    """The model with its step in microbatches."""
    plan = _plan(cluster, model, far, None, weights_apart=apart)
    split = Pipeline(plan, _PARTS, tuple(units_of(plan).tasks(_PARTS)))
    microbatches = lazy_import("microbatches")(split)
    made: nn.Module = lazy_import("assign")(model, plan, reorder=False, microbatches=microbatches)
    return made


def _plan(
    cluster: Cluster, model: nn.Module, far: Iterable[bool], order: Iterable[int] | None, **notes: bool
) -> Plan:
    """A plan for a chain, as `_assigned` takes it."""
    names = [name for name, module in model.named_modules() if isinstance(module, _Layer)]
    names.sort(key=_reached)
    graph: nx.DiGraph[str] = nx.DiGraph(training=True)
    graph.graph.update(notes)
    for name in names:
        graph.add_node(name, module=name, grad_bytes=4, param_bytes=4, backward_flops=4)
        parent, _, number = name.rpartition(".")
        before = f"{parent}.{int(number) - 1}" if number.isdigit() else ""
        if before in graph:
            graph.add_edge(before, name, bytes=4 * _FEATURES)
    devices = {name: cluster.names[there] for name, there in zip(names, far, strict=True)}
    plan_order = tuple([names[number] for number in order]) if order is not None else tuple(names)
    return Plan(LayerGraph.from_networkx(graph), cluster, devices, plan_order)


def _reached(name: str) -> float:
    """When the code reaches a layer: of two chains, the layers with the same number follow each other."""
    number = name.rpartition(".")[2]
    return int(number) if number.isdigit() else inf


def _medians(ways: dict[str, _Way], rounds: int) -> dict[str, float]:
    """By way, median seconds of its forward; of its backward under its name and `", backward"`."""
    seconds: dict[str, list[float]] = {}
    for number in range(rounds + _WARM_UP):
        for name, way in ways.items():
            with torch.set_grad_enabled(way.training):
                begun_s = time.process_time()
                result = way.run()
                over_s = time.process_time()
                if way.training:
                    result.sum().backward()
            if number >= _WARM_UP:
                seconds.setdefault(name, []).append(over_s - begun_s)
                seconds.setdefault(f"{name}, backward", []).append(time.process_time() - over_s)
    return {name: median(taken_s) for name, taken_s in seconds.items()}


def _costs(seconds: dict[str, float], layers: int) -> HostCosts:
    def each(more: str, less: str, count: int, fixed_s: float = 0.0) -> float:
        return max(0.0, seconds[more] - seconds[less] - fixed_s) / count

    step_s = (
        seconds["short"] - seconds["plain, short"]
    )  # a step with two layers and the transfers of every chain
    transfers = layers - 2  # of the zigzag beyond the chain's one
    transfer_s = each("zigzag", "chain", transfers)
    node_s = each("zigzag, training, backward", "chain, training, backward", 2 * transfers)
    sent_s = _PARTS * transfers * (transfer_s + node_s)
    task_s = each("tasks, zigzag", "tasks, chain", 2 * _PARTS * transfers, sent_s)
    return replace(
        HostCosts.usual(),
        layer_call_s=each("chain", "plain", layers - 2, step_s),
        functional_op_s=each("ops", "plain, ops", layers, step_s),
        waiting_layer_s=each("waiting", "pair", layers // 2),
        waiting_layer_threads_s=each("waiting, threads", "pair", layers // 2),
        transfer_s=transfer_s,
        gradient_transfer_s=each("zigzag, training", "chain, training", transfers),
        backward_node_s=node_s,
        task_s=task_s,
        weights_s=each("weights, apart", "weights, whole", _PARTS * (layers // 2), _PARTS * task_s),
    )
