"""The picture says what the timeline does: it is read back from the SVG, box by box."""

import re
from random import Random
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.strategies import any_plan, clusters, layer_graphs

import baechi
from baechi import report
from baechi.records import Plan
from baechi.records.pipeline import Pipeline

plans = st.builds(any_plan, layer_graphs(), clusters(), st.builds(Random, st.integers(0, 10**6)))

LEFT, RIGHT = 84, 844
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str, kind: str = "") -> list[str]:
    root = ElementTree.fromstring(svg)
    return [t.text or "" for t in root.iter(f"{SVG}text") if kind in t.attrib.get("class", "")]


def boxes(svg: str, kind: str) -> list[tuple[float, float]]:
    """Begin and end of what is drawn with exactly this class, 26 high."""
    drawn = [
        p.attrib["d"] for p in ElementTree.fromstring(svg).iter(f"{SVG}path") if p.attrib["class"] == kind
    ]
    found = [re.findall(r"M([\d.]+) [\d.]+H([\d.]+)v26", path) for path in drawn]
    return sorted((float(begin), float(end)) for several in found for begin, end in several)


def covered_s(spans: list[tuple[float, float]]) -> float:
    """How long at least one of these is there."""
    total, until = 0.0, 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


@settings(max_examples=examples(30), deadline=None)
@given(plan=plans)
def test_any_plan(plan: Plan) -> None:
    """Well formed; each used device, once beside its row and once beside its memory; the verdict in words."""
    svg = report.to_svg(plan)
    said = texts(svg)
    for device in plan.devices_used:
        assert said.count(device) == 2
    assert len(svg) < 60 * 1024


def test_boxes_are_the_spans() -> None:
    """Each device's forward and backward take the part of the width that they take of the step."""
    plan = baechi.place(
        baechi.LayerGraph.load("inception-v3"),
        baechi.Cluster.parse("2xA100-80GB"),
        optimizer="adam",
        effort=0,
    )
    svg, step_s = report.to_svg(plan), plan.timeline.makespan_s
    for number, device in enumerate(plan.cluster.names):
        for kind, phase in ((f"d{number}", "forward"), (f"d{number} backward", "backward")):
            spans = [
                s for s in plan.timeline.spans if (s.where, s.phase, s.kind) == (device, phase, "compute")
            ]
            drawn = boxes(svg, kind)
            share = covered_s([(s.start_s, s.end_s) for s in spans]) / step_s
            assert sum(end - begin for begin, end in drawn) / (RIGHT - LEFT - 1) == pytest.approx(
                share, abs=0.02
            )
            assert drawn[0][0] == pytest.approx(LEFT + 760 * spans[0].start_s / step_s, abs=1.5)
    assert "computes 93 % of the step" in " ".join(texts(svg))


def test_nothing_is_drawn_after_the_step() -> None:
    """A dry run's timeline has the optimizer's work, too, which begins before the last device is done."""
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    cluster = baechi.Cluster.virtual(2, memory="1GiB", like="CPU")
    baechi.distribute(model, torch.randn(64, 256), cluster=cluster, placer="even", optimizer="adam")
    plan = baechi.plan_of(model)
    assert any(span.end_s > plan.timeline.makespan_s for span in plan.timeline.spans)
    ends = [float(x) for x in re.findall(r"H([\d.]+)", report.to_svg(plan))]
    assert max(ends) == RIGHT


def test_a_pipeline_has_its_microbatches() -> None:
    """Of four devices each runs four microbatches forward and backward; an odd name is text."""
    graph = baechi.LayerGraph.load("transformer")
    graph.graph["model"] = "<b>&\x1b"
    cluster = baechi.Cluster.parse("4xA100-80GB")
    pipeline = baechi.pipeline(baechi.place(graph, cluster, "even"), 4)
    assert isinstance(pipeline, Pipeline)
    svg = report.to_svg(pipeline)
    numbers = texts(svg, "number")
    used = {span.where for span in pipeline.timeline.spans if span.kind == "compute"}
    assert {*numbers} == {"0", "1", "2", "3"} and len(used) == 4
    assert "number backward" in svg and "critical path" not in svg
    assert any(text.startswith("<b>&\\x1b, 4 microbatches, on 4 x A100-80GB") for text in texts(svg, "title"))
