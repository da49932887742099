"""Placing for a step in microbatches, by a number or by the best of several."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from records.pipeline.chains import chain

import baechi
from baechi import Cluster, LayerGraph, Link, Pipeline
from baechi.errors import PlacementError
from baechi.report.summary import summary
from baechi.simulate.pipeline import coster, costs_of, shortest_pipeline_s
from baechi.simulate.pipeline.ordering import choose
from baechi.verbs.pipelines import least_step_s
from baechi.zoo import MODELS

FAST = Link(1e-6, 1e12)


def parts(layers: int, numbers: tuple[int, ...], overhead: float = 0.0) -> dict[int, LayerGraph]:
    """A chain of equal layers whose batch is split: each microbatch takes its share, and an overhead."""
    return {m: chain([(1.0 / m + overhead, 2.0 / m + overhead)] * layers, size=8) for m in numbers}


def test_a_chain_over_four_devices() -> None:
    """Eight equal layers, eight microbatches: 11 of 8 parts of a quarter, which is the bound."""
    graph = parts(8, (8,))[8]
    made = baechi.place(graph, Cluster.uniform(4, link=FAST), microbatches=8)
    assert isinstance(made, Pipeline)
    assert made.microbatches == 8
    assert len(made.plan.devices_used) == 4
    assert made.timeline.makespan_s < 24 / 4 * (8 + 3) / 8 * 1.01
    assert made.timeline.makespan_s <= 1.01 * shortest_pipeline_s(costs_of(made.plan), 8)
    assert made.tried
    assert Pipeline.from_json(made.to_json()).timeline.makespan_s == made.timeline.makespan_s


@pytest.mark.parametrize("returned", [8, 2**30])
def test_results_that_do_not_fit(returned: int) -> None:
    """All microbatches' results are joined: where they are what is too much, the error says so."""
    graph = parts(4, (8,))[8]
    for name in list(graph.placed()):
        graph.nodes[name].update(param_bytes=2**20, saved_bytes=2**29 if returned == 8 else 0)
    graph.nodes["l3"]["returned"] = {"0": returned}
    cluster = Cluster.uniform(2, link=FAST, memory="256MiB" if returned == 8 else "4GiB")
    with pytest.raises(PlacementError) as raised:
        baechi.place(graph, cluster, microbatches=8, optimizer="sgd")
    told = "8.00 GiB of results on device:0 is kept and joined: let the model return its loss alone"
    assert (told in str(raised.value)) == (returned != 8), raised.value


@pytest.mark.parametrize("overhead", [0.0, 0.01, 10.0])
def test_auto_is_never_worse_than_one(overhead: float) -> None:
    """Small microbatches that waste time make fewer of them better, in the end one."""
    graphs = parts(6, (1, 2, 4, 8, 16), overhead)
    cluster = Cluster.uniform(3, link=FAST)
    auto = baechi.place(graphs, cluster, microbatches="auto", effort=0)
    one = baechi.place(graphs[1], cluster, microbatches=1, effort=0)
    assert auto.timeline.makespan_s <= one.timeline.makespan_s
    assert (auto.microbatches == 1) == (overhead == 10.0)
    assert one.timeline.makespan_s == baechi.place(graphs[1], cluster, effort=0).timeline.makespan_s


def test_the_plan_without_microbatches() -> None:
    """It is that of the batch's own graph; one microbatch's costs do not tell it."""
    graphs, cluster = parts(8, (1, 8), 0.01), Cluster.uniform(4, link=FAST)
    alone = baechi.place(graphs[1], cluster, effort=0)
    assert baechi.place(graphs[8], cluster, microbatches=8, effort=0).unsplit is None
    for number in (8, "auto"):
        made = baechi.place(graphs, cluster, microbatches=number, effort=0)  # type: ignore[arg-type]
        assert made.unsplit is not None and made.microbatches == 8
        assert made.unsplit.timeline.makespan_s == alone.timeline.makespan_s
        read = Pipeline.from_json(made.to_json())
        assert read.unsplit is not None and read.to_json() == made.to_json()
    old = made.body()
    del old["unsplit"]
    assert Pipeline.from_body(old).unsplit is None
    assert baechi.place(graphs[1], cluster, microbatches=1, effort=0).unsplit is None


def test_the_plan_without_microbatches_need_not_fit() -> None:
    """It is shown all the same, and by how much devices are too full."""
    graphs = {1: chain([(8.0, 16.0)] * 4, size=64), 8: chain([(1.0, 2.0)] * 4, size=8)}
    for number, graph in graphs.items():
        for name in graph.placed():
            graph.nodes[name].update(saved_bytes=800 // number)
    made = baechi.place(graphs, Cluster.uniform(2, memory=500, link=FAST), microbatches=8, effort=0)
    assert made.unsplit is not None and made.unsplit.cluster == made.plan.cluster
    assert max(made.unsplit.timeline.peak_bytes.values()) >= 1600
    assert "The plan does not fit: " in str(made)
    assert " (no plan without microbatches fits), fullest device:0, at most " in summary(made)


def test_memory() -> None:
    """Where a cut fits with few in flight only, the order keeps to that; else it is refused."""
    graph = chain([(1.0, 2.0)] * 4, size=8)
    for name in graph.placed():
        graph.nodes[name].update(param_bytes=50, saved_bytes=100)
    made = baechi.place(graph, Cluster.uniform(2, memory=420, link=FAST), microbatches=4)
    assert max(made.timeline.peak_bytes.values()) <= 420
    assert max(made.in_flight.values()) < 4
    with pytest.raises(PlacementError):
        baechi.place(graph, Cluster.uniform(2, memory=200, link=FAST), microbatches=4)


def test_another_placer() -> None:
    """A placer that is named places; the order is chosen all the same."""
    graph = chain([(1.0, 2.0)] * 4, size=8)
    made = baechi.place(graph, Cluster.uniform(2, link=FAST), "round-robin", microbatches=4)
    assert made.plan.placer == "round-robin"
    assert len(made.stages) == 4


def test_pipeline_of_a_plan() -> None:
    """A plan made elsewhere is ordered by name, with limits."""
    plan = baechi.place(chain([(1.0, 2.0)] * 4, size=8), Cluster.uniform(2, link=FAST), "even")
    made = baechi.pipeline(plan, 4, "1f1b", split={"mask": None})
    assert (made.rule, dict(made.split)) == ("1f1b", {"mask": None})
    assert max(baechi.pipeline(plan, 4, limits={"device:0": 1}).in_flight.values()) == 1


@pytest.mark.parametrize(
    ("graphs", "microbatches", "fault"),
    [
        (lambda: chain([(1.0, 1.0)]), "auto", "compares several numbers"),
        (lambda: {1: chain([(1.0, 1.0)])}, None, "several graphs are for microbatches='auto'"),
        (lambda: {1: chain([(1.0, 1.0)])}, 2, "no graph for 2 microbatches"),
        (lambda: chain([(1.0, 1.0)]), 0, "whole numbers of at least 1"),
        (lambda: chain([(1.0, 1.0)]), "8", "microbatches is '8': whole numbers"),
        (lambda: {n: chain([(1.0, 1.0)]) for n in range(1, 19)}, "auto", "18 numbers"),
    ],
)
def test_refusals(graphs: Callable[[], Any], microbatches: Any, fault: str) -> None:
    """Graphs and numbers that do not go together are told apart."""
    with pytest.raises(ValueError, match=fault):
        baechi.place(graphs(), Cluster.uniform(2), microbatches=microbatches)


@pytest.mark.parametrize("microbatches", [None, 2, "auto"])
def test_what_is_no_graph(microbatches: Any) -> None:
    """A path, or what profile was called with, is told what to do."""
    for wrong in ("graph.json", {1: "graph.json"}, torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match=r"graph is of type (str|Linear): it takes .*LayerGraph\.load"):
            baechi.place(wrong, Cluster.uniform(2), microbatches=microbatches)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="graph is of type str"):
        baechi.split("graph.json", "head", 2)  # type: ignore[arg-type]


def test_profile_at_microbatch_size() -> None:
    """The graph of one microbatch has the work of the largest part; a batch must have a row for each."""
    model = torch.nn.Linear(4, 4)
    flops = [
        baechi.profile(model, torch.ones(10, 4), microbatches=m, source="estimate").total("flops")
        for m in (1, 2, 4)
    ]
    assert flops == [flops[0], flops[0] / 2, flops[0] * 0.3]
    with pytest.raises(ValueError, match="microbatches is 11, and the batch has 10 rows"):
        baechi.profile(model, torch.ones(10, 4), microbatches=11, source="estimate")
    with pytest.raises(ValueError, match=r"microbatches is 2\.5: a whole number of at least 1"):
        baechi.profile(model, torch.ones(10, 4), microbatches=2.5, source="estimate")  # type: ignore[arg-type]


def test_costs_of_another_number() -> None:
    """A plan whose graph has the costs of another number of microbatches is refused."""
    graph = baechi.profile(torch.nn.Linear(4, 4), torch.ones(8, 4), microbatches=4, source="estimate")
    plan = baechi.place(graph, Cluster.uniform(2, link=FAST))
    assert baechi.pipeline(plan, 4, "gpipe").microbatches == 4
    with pytest.raises(ValueError, match="costs of one of 4 microbatches, not of 8"):
        baechi.pipeline(plan, 8)
    graph.remove_nodes_from(list(graph))
    with pytest.raises(ValueError, match="the graph has no layers to run in microbatches"):
        baechi.place(graph, Cluster.uniform(2, link=FAST), microbatches=4)


@pytest.mark.full
@pytest.mark.parametrize(("name", "batch", "least"), [("transformer", 256, 2.8), ("inception-v3", 128, 2.5)])
def test_gain_at_full_size(name: str, batch: int, least: float) -> None:
    """Predicted on four equal A100s with 8 microbatches, beside one device."""
    model, inputs = MODELS[name]("full", batch, device="meta")
    check_gain(model, inputs, least)


@pytest.mark.full
@pytest.mark.parametrize(
    ("width", "layers", "least"),
    [(768, 12, 2.75), (1024, 24, 2.8)],  # the head of the small one is more than a quarter of its work
)
def test_gain_of_gpt2(width: int, layers: int, least: float) -> None:
    """The same for GPT-2, small and medium."""
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        config = transformers.GPT2Config(n_embd=width, n_layer=layers, n_head=width // 64)
        model = transformers.GPT2LMHeadModel(config).train()
        ids = torch.zeros(32, 1024, dtype=torch.long)
    check_gain(model, {"input_ids": ids, "labels": ids}, least)


def check_gain(model: torch.nn.Module, inputs: Any, least: float) -> None:
    cluster = Cluster.parse("4xA100-80GB")
    roomy = Cluster.parse("4xA100-80GB", memory="1TiB")
    whole = baechi.profile(model, inputs, cluster=cluster, training=True, source="estimate")
    one_s = baechi.place(whole, roomy, "single").timeline.makespan_s
    part = baechi.profile(model, inputs, cluster=cluster, training=True, source="estimate", microbatches=8)
    made = baechi.place(part, cluster, microbatches=8, optimizer="adam", effort=0)
    assert one_s / made.timeline.makespan_s >= least


def test_a_bound_counts_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds whatever the memory, and counting would be most of its time. Two runs on each device."""
    graph, count = parts(8, (8,))[8], Mock()
    monkeypatch.setattr(coster, "bytes_of", count)
    least_s = least_step_s([Cluster.uniform(4, link=FAST)], 8, graph, searches=True)
    assert least_s == pytest.approx(6 * (1 + 3 / 16), rel=1e-4)
    assert not count.called


@pytest.mark.parametrize("live", [1, 3, 5])
def test_limits_between_those_that_were_tried(live: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many tasks few limits in flight are tried; where none of these fits, one in between may."""
    monkeypatch.setattr(choose, "_MOST_TASKS", 0)
    graph = chain([(1.0, 2.0)] * 4, size=8)
    for name in graph.placed():
        graph.nodes[name].update(saved_bytes=1000.0)
    made = baechi.place(graph, Cluster.uniform(4, link=FAST, memory=1000 * live + 500), microbatches=16)
    assert max(made.timeline.peak_bytes.values()) <= 1000 * live + 500


def weighted(times: Sequence[float] = (0.25,) * 8) -> LayerGraph:
    """A chain of products with weights, of one microbatch."""
    graph = chain([(one, 2 * one) for one in times], size=8)
    for name in graph.placed():
        graph.nodes[name].update(grad_bytes=8, param_bytes=8, backward_flops=8)
    return graph


def test_zero_bubble_is_offered() -> None:
    """The report names its step, its memory and the argument that has it; the order stays the usual one."""
    graph, cluster = weighted(), Cluster.uniform(4, link=FAST)
    made = baechi.place(graph, cluster, microbatches=4)
    assert not made.units.weights_of
    (offered,) = [one for one in made.tried if one.is_apart]
    assert offered.step_s < made.timeline.makespan_s
    told = " ".join(str(made).split())
    assert "Faster with weights_apart=True (" in told
    assert "weights apart, " in told[told.index("Memory against time") :]
    asked = baechi.place(graph.noted(weights_apart=True), cluster, microbatches=4)
    assert asked.units.weights_of
    assert asked.timeline.makespan_s <= offered.step_s * 1.001


def test_both_are_shown_where_zero_bubble_is_asked_for() -> None:
    """What was tried says of each order which it is."""
    made = baechi.place(weighted().noted(weights_apart=True), Cluster.uniform(4, link=FAST), microbatches=4)
    assert {one.is_apart for one in made.tried} == {False, True}
    whole_s = min([one.step_s for one in made.tried if not one.is_apart])
    assert made.timeline.makespan_s == min([one.step_s for one in made.tried]) < whole_s


@pytest.mark.parametrize("changed", [{"training": False}, {"recompute": ("l1",)}])
def test_where_zero_bubble_is_not_offered(changed: dict[str, Any]) -> None:
    """In inference, and where modules run again in backward."""
    made = baechi.place(weighted().noted(**changed), Cluster.uniform(4, link=FAST), microbatches=4)
    assert not any([one.is_apart for one in made.tried])


@pytest.mark.parametrize("times", [[4, 1, 1, 1, 1, 1, 1, 1, 1], [2, 2, 1, 1, 1, 1, 1, 4]])
def test_zero_bubble_has_a_placement_of_its_own(times: list[int]) -> None:
    """It is another one than that of the whole backward, on which its step would not be shorter."""
    graph, cluster = weighted([0.25 * one for one in times]), Cluster.uniform(3, link=FAST)
    whole = baechi.place(graph, cluster, microbatches=4)
    same = baechi.pipeline(replace(whole.plan, graph=graph.noted(weights_apart=True)), 4)
    own = baechi.place(graph.noted(weights_apart=True), cluster, microbatches=4)
    assert own.timeline.makespan_s <= same.timeline.makespan_s * (1 + 1e-9)
    if times[0] == 4:
        assert own.device_of != whole.device_of
        assert own.timeline.makespan_s < 0.95 * same.timeline.makespan_s
