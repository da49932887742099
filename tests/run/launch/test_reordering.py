"""Reordering changes nothing that a model's code can see: hard little models, in any order of launches."""

import threading
from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest
import torch
from architectures.base import noise
from run.launch.reordering import gradients, structures, values, writes
from run.launch.reordering.case import CASES, Case, Net
from run.launch.reordering.models import linear
from run.launched import runtime_of
from same import Result, assert_same, step
from torch import Tensor, nn

import baechi
from baechi.run.step.step import Step

Placer = str | Callable[[baechi.LayerGraph, baechi.Cluster], baechi.Plan]


def late(seed: int) -> Placer:
    """Random devices; what the code reaches last launches first, as far as it can."""

    def place(graph: baechi.LayerGraph, cluster: baechi.Cluster) -> baechi.Plan:
        return backwards(graph, cluster, baechi.place(graph, cluster, f"random:{seed}").device_of)

    return place


def stacked(graph: baechi.LayerGraph, cluster: baechi.Cluster) -> baechi.Plan:
    """All on the first device but one group, which is on the last one; in the same order as `late`."""
    groups = list(graph.groups().values())
    alone = next(g for g in reversed(groups) if any(graph.nodes[n]["kind"] == "layer" for n in g))
    first, last = cluster.names[0], cluster.names[-1]
    return backwards(graph, cluster, {n: last if n in alone else first for n in graph.placed()})


def backwards(graph: baechi.LayerGraph, cluster: baechi.Cluster, device_of: Any) -> baechi.Plan:
    """An order that is the code's in reverse wherever the edges allow it."""
    code = {name: place for place, name in enumerate(graph.code_order())}
    placed = graph.subgraph(graph.placed())
    order = nx.lexicographical_topological_sort(placed, key=lambda name: -code[name])
    return baechi.Plan(graph, cluster, device_of, tuple(order))


FILLED_BY = (gradients, structures, values, writes)
"""These modules add to `CASES` as they are imported."""

CONFIGS: tuple[tuple[Placer, int, Any], ...] = (
    ("m-topo", 2, "host"),
    ("m-etf", 3, "threads"),
    ("random:0", 1, "host"),
    ("random:0", 2, "threads"),
    ("random:1", 3, "host"),
    ("random:2", 4, "threads"),
    (stacked, 2, "host"),
    (stacked, 2, "threads"),
    (late(3), 2, "host"),
    (late(1), 3, "threads"),
    (late(2), 4, "host"),
    (late(2), 3, False),
)


def run(model: nn.Module, given: Case, cluster: baechi.Cluster) -> tuple[list[Result], list[Any]]:
    """Two steps on a cluster; the results, and what the code noted."""
    results, notes = [], []
    threads = threading.active_count()
    with cluster:
        for _ in range(2):
            results.append(step(model, given.inputs(), training=True))
            notes.append(getattr(model, "notes", None))
            assert torch._C._len_torch_function_stack() == 0
            assert threading.active_count() == threads
    return results, notes


@pytest.mark.parametrize("given", CASES, ids=lambda given: given.name)
def test_transparent(given: Case) -> None:
    """Outputs, buffers, gradients and all that the code saw are the plain model's, in any order."""
    plain = given.build()
    expected = [(step(plain, given.inputs(), training=True), plain.notes) for _ in range(2)]
    graph = baechi.profile(given.build(), given.inputs(), cluster=baechi.Cluster.virtual(1), training=True)
    waited = 0
    for placer, n, reorder in CONFIGS:
        cluster = baechi.Cluster.virtual(n)
        model = baechi.assign(given.build(), baechi.place(graph, cluster, placer), reorder=reorder)
        results, notes = run(model, given, cluster)
        waited += runtime_of(model).counts.get("deferred", 0)
        for (reference, seen), result, noted in zip(expected, results, notes, strict=True):
            assert_same(reference, result, tolerance=given.tolerance)
            assert seen == noted
    assert bool(waited) == given.waits


@pytest.mark.parametrize("reorder", ["host", "threads"])
def test_what_a_waiting_layer_hands_through_is_sent_ahead(
    reorder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer that returns what it was given (dropout in inference) sends it to its readers when it has
    launched, also where it had to wait."""

    def code(self: Net, x: Tensor) -> Tensor:
        y, z = self.drop(self.a(x)), self.b(x)
        return self.c(y) + z

    model = Net(code, {"a": linear, "drop": nn.Dropout, "b": linear, "c": linear}).eval()
    cluster = baechi.Cluster.virtual(2)
    x = noise(4, 8)
    graph = baechi.profile(model, (x,), cluster=cluster)
    where = {node: cluster.names[node == "c" or node.startswith("glue")] for node in graph.placed()}
    order = ["b", *[node for node in graph.placed() if node != "b"]]  # a and the dropout wait for b
    expected = model(x)
    baechi.assign(model, baechi.Plan(graph, cluster, where, tuple(order)), reorder=reorder)
    pushed = []
    push = Step.push
    monkeypatch.setattr(Step, "push", lambda *args: (pushed.append(args[1]), push(*args)))
    with cluster, torch.no_grad():
        assert torch.equal(model(x), expected)
    assert runtime_of(model).launched == ["b", "a", "drop", "c"]
    assert len(pushed) == 2 and all(isinstance(tensor, Tensor) for tensor in pushed)  # the dropout's, and b's


@pytest.mark.parametrize("reorder", [False, "host"])
def test_what_says_a_shape_only_draws_nothing_to_it(reorder: Any) -> None:
    """`a.expand_as(b)` stays where `a` is, as in the graph: who computes with it runs where planned."""

    def code(self: Net, x: Tensor) -> Tensor:
        row, y = self.a(x).argsort(0), self.b(x)
        return y.gather(0, row.expand_as(y))

    model, cluster, x = Net(code, {"a": linear, "b": linear}), baechi.Cluster.virtual(2), noise(64, 8)
    expected = model(x)
    graph = baechi.profile(model, (x,), cluster=cluster, training=False)
    glue = {node for node in graph.placed() if graph.nodes[node]["kind"] == "glue"}
    where = {node: cluster.names[node == "b"] for node in graph.placed()}
    plan = baechi.Plan(graph, cluster, where)
    baechi.assign(model, plan, reorder=reorder)
    with cluster, torch.no_grad():
        assert torch.equal(model(x), expected)
        spans = baechi.last_step(model).spans
    planned, ran = (
        sorted([s.where for s in found if s.kind == "transfer"]) for found in (plan.timeline.spans, spans)
    )
    assert glue and planned == ran
