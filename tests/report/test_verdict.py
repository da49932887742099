"""The sentence at the head of a report, on steps of which one knows it."""

from itertools import pairwise
from typing import Any

import pytest
from place.graphs import FREE, branches, chain, cluster_of, graph_of
from records.pipeline.chains import chain as stages
from records.pipeline.chains import equal_chain, over

from baechi.records import Link, Plan
from baechi.report.facts import Facts
from baechi.report.pipeline import PipelineFacts
from baechi.report.pipeline.verdict import pipeline_verdict
from baechi.simulate.pipeline import ordered


def placed(graph: Any, cluster: Any, device: str = "d0", **others: str) -> Plan:
    where = {name: others.get(name.partition(".")[0], device) for name in graph.placed()}
    return Plan(graph, cluster, where)


def said(plan: Plan) -> str:
    return Facts(plan).verdict


def towers(large_s: float = 9.0) -> Any:
    """Two towers of three layers each beside each other, one of 3 s; and a layer that joins them."""
    nodes: dict[str, dict[str, Any]] = {}
    for tower, seconds in (("image", large_s / 3), ("text", 1.0)):
        nodes |= {f"{tower}.blocks.{number}": {"forward_s": seconds} for number in range(3)}
    nodes["loss"] = {"forward_s": 1.0}
    edges = [(f"{t}.blocks.{n}", f"{t}.blocks.{n + 1}", 0) for t in ("image", "text") for n in range(2)]
    return graph_of(nodes, [*edges, ("image.blocks.2", "loss", 0), ("text.blocks.2", "loss", 0)])


def test_two_unequal_towers() -> None:
    """Each on a device: 9 + 1 s instead of 13. No plan is faster, and the large one holds 9 of the 10."""
    assert said(placed(towers(), cluster_of(9, 9, link=FREE), text="d1")) == (
        "1.30 times as fast as one device, 100.0 % of the bound; image is the limit (90 % of the critical "
        "path): more devices add memory, not speed."
    )


def test_the_towers_on_one_device() -> None:
    """All of it queues there: 13 s, where 10 would do."""
    assert said(placed(towers(), cluster_of(9, 9, link=FREE))) == (
        "All on one of 2 devices, 76.9 % of the bound; d0 is the limit, busy for 100 % of the step: layers "
        "that could run at once share it."
    )


def test_a_chain() -> None:
    """It gains nothing by a second device, and no module stands out."""
    assert said(placed(chain(6), cluster_of(99, 999, link=FREE), l4="d1", l5="d1")) == (
        "1.00 times as fast as one device, 100.0 % of the bound; the whole model, layer after layer, is the "
        "limit: more devices add memory, not speed."
    )
    assert said(placed(chain(6), cluster_of(999))).startswith("All on one device, 100.0 % of the bound; the")


def test_a_heavy_layer() -> None:
    """Where one layer takes most of a chain, it is named."""
    graph = chain(6)
    graph.nodes["l3"]["forward_s"] = 20
    assert "; l3 is the limit (80 % of the critical path): more" in said(placed(graph, cluster_of(999)))


def test_a_module_that_is_nearly_all_is_the_model() -> None:
    """A name says something only where there is work beside it: not `model.layers`, but all."""
    nodes = {f"model.layers.{n}": {"forward_s": 1.0} for n in range(40)} | {"head": {"forward_s": 0.5}}
    names = list(nodes)
    graph = graph_of(nodes, [(*pair, 0) for pair in pairwise(names)])
    assert "; the whole model, layer after layer, is the limit" in said(placed(graph, cluster_of(9)))


def test_a_link() -> None:
    """4 bytes at a tenth of a byte a second, between layers of a second."""
    assert said(placed(chain(3), cluster_of(99, 99, link=Link(0.0, 0.1)), l2="d1")) == (
        "0.07 times as fast as one device, 6.9 % of the bound; the link d0>d1 is the limit (transfers are "
        "93 % of the critical path): less over it adds speed."
    )


def test_the_host() -> None:
    """Kernels of 0.1 s that take the host a second each."""
    nodes = {name: {"forward_s": 0.1, "host_forward_s": 1} for name in "abc"}
    graph = graph_of(nodes, [("a", "b", 0), ("b", "c", 0)])
    found = said(placed(graph, cluster_of(9, link=FREE, launch_s=1)))
    assert "; the host is the limit (devices wait for it for 8" in found


def test_all_devices_are_busy() -> None:
    """Four branches of 9 on two devices: a third one would help; no more than to the 11 s of a path."""
    graph = branches(4, 9)
    found = said(placed(graph, cluster_of(999, 999, link=FREE), b2="d1", b3="d1"))
    assert found.startswith("1.90 times as fast as one device, ")
    assert found.endswith(
        "; all devices are the limit, busy for 95 % of the step: more devices save at most 45 % of the step."
    )


def test_a_bad_placement_is_not_the_models_limit() -> None:
    """A chain on the slower device: a faster one stands idle."""
    found = said(placed(chain(6), cluster_of(999, 999, link=FREE, speeds=(1, 4))))
    assert found.endswith("is the limit: no placement saves more than 75 % of the step.")
    assert "25.0 % of the bound" in found


def test_no_room() -> None:
    """That the plan does not fit comes first; that no device holds all layers is a gain."""
    graph = chain(4)
    whole = placed(graph, cluster_of(40, 9999))
    assert said(whole).startswith("Does not fit (d0 is short of ")
    halves = placed(graph, cluster_of(50, 50, link=FREE), l2="d1", l3="d1")
    assert said(halves).startswith("No single device holds it, ")


def test_nothing() -> None:
    """An empty step."""
    assert said(Plan(graph_of({}), cluster_of(9), {})) == "Nothing takes time in this step."


def test_the_bound_is_never_beaten() -> None:
    """No figure says more than 100 %."""
    for links in (FREE, Link(1.0, 1.0)):
        for graph in (towers(), chain(5), branches(3, 3)):
            facts = Facts(placed(graph, cluster_of(999, 999, link=links), b1="d1", text="d1", l3="d1"))
            assert facts.bound_s <= facts.step_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("pipeline", "sentence"),
    [
        (
            ordered(equal_chain(2), 3),
            "1.50 times as fast as one device, 100.0 % of the bound; filling and draining is the limit.",
        ),
        (
            ordered(over(stages([(1.0, 2.0), (3.0, 6.0)]), range(2)), 16),
            "1.31 times as fast as one device, 100.0 % of the bound; uneven work is the limit.",
        ),
    ],
)
def test_pipelines(pipeline: Any, sentence: str) -> None:
    """12 s instead of 18; of 16 microbatches of 3 and 9 s, 147 instead of 192."""
    assert pipeline_verdict(PipelineFacts(pipeline)) == sentence
