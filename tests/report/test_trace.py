"""Traces against the format's document, "Trace Event Format" of the Chromium project.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from itertools import pairwise
from numbers import Real
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import cluster_of, graph_of
from place.strategies import any_plan, clusters, layer_graphs

import baechi
from baechi import report, zoo
from baechi.records import Plan, Span, Timeline

plans = st.builds(any_plan, layer_graphs(), clusters(), st.builds(Random, st.integers(0, 10**6)))

NEEDED = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid", "args"},
    "M": {"name", "pid", "args"},
    "C": {"name", "ts", "pid", "args"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
}
TYPES: dict[str, type] = {
    "name": str,
    "cat": str,
    "args": dict,
    "pid": int,
    "tid": int,
    "ts": Real,
    "dur": Real,
}
META = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name",
        "thread_sort_index": "sort_index"}  # fmt: skip


def events(text: str) -> list[dict[str, Any]]:
    trace = json.loads(text, parse_constant=lambda constant: 1 / 0)
    assert set(trace) == {"displayTimeUnit", "traceEvents"} and trace["displayTimeUnit"] in ("ms", "ns")
    found: list[dict[str, Any]] = trace["traceEvents"]
    return found


def threads(found: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The slices by names of process and thread."""
    process = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    thread = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    by_name: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (pid, tid), name in thread.items():
        own = [e for e in found if e["ph"] == "X" and (e["pid"], e["tid"]) == (pid, tid)]
        by_name[process[pid], name] = own
    assert sum(map(len, by_name.values())) == sum(e["ph"] == "X" for e in found)
    return by_name


@given(plans)
@settings(max_examples=examples(100), deadline=None)
def test_schema(plan: Plan) -> None:
    """Every event has the fields of its phase, of their types; metadata has the one argument that it sets."""
    for event in events(report.to_trace(plan.timeline, plan.timeline)):
        assert set(event) - {"tid"} == NEEDED[event["ph"]] - {"tid"} | {"ph"}
        assert event["ph"] == "C" or "tid" in event or event["name"].startswith("process_")
        assert all(isinstance(event[field], kind) for field, kind in TYPES.items() if field in event)
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0
        if event["ph"] == "M":
            assert list(event["args"]) == [META[event["name"]]]
        if event["ph"] == "C":
            assert all(isinstance(value, Real) for value in event["args"].values())


@given(plans)
@settings(max_examples=examples(100), deadline=None)
def test_slices(plan: Plan) -> None:
    """Each layer is on its device's compute thread, each transfer on both ends; none overlap."""
    found = events(report.to_trace(plan.timeline))
    slices = threads(found)
    for span in plan.timeline.spans:
        source, _, target = span.where.partition(">")
        ends = (
            [(source, f"tx to {target}"), (target, f"rx from {source}")] if target else [(source, "compute")]
        )
        for end in ends:
            same = [e for e in slices[end] if e["name"] == span.layer and e["args"]["phase"] == span.phase]
            assert any(abs(e["ts"] - span.start_s * 1e6) < 1e-3 * (1 + span.start_s * 1e6) for e in same)
    for own in slices.values():
        ordered = sorted((round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)) for e in own)
        assert all(before[1] <= after[0] for before, after in pairwise(ordered))
    starts, ends_ = ({e["id"]: e["ts"] for e in found if e["ph"] == ph} for ph in "sf")
    assert starts == ends_ and len(starts) == plan.timeline.counters["transfers"]


def test_processes_threads_and_memory() -> None:
    """Devices in order, then the host; compute above links; memory as the timeline has it."""
    graph = graph_of(
        {"input:x": {"kind": "input"}, "a": {"forward_s": 1, "output_bytes": 4}, "b": {"forward_s": 2}},
        [("input:x", "a", 2), ("a", "b", 4)],
    )
    plan = Plan(graph, cluster_of(9, 9), {"a": "d0", "b": "d1"})
    found = events(report.to_trace(plan.timeline))
    assert [e["args"]["name"] for e in found if e["name"] == "process_name"] == ["d0", "d1", "host"]
    assert {name: [e["name"] for e in own] for name, own in threads(found).items()} == {
        ("d0", "compute"): ["a"],
        ("d0", "rx from host"): ["input:x"],
        ("d0", "tx to d1"): ["a"],
        ("d1", "compute"): ["b"],
        ("d1", "rx from d0"): ["a"],
        ("host", "compute"): [],
        ("host", "tx to d0"): ["input:x"],
    }
    memory = [(e["pid"], e["ts"], e["args"]["bytes"]) for e in found if e["ph"] == "C"]
    names = list(plan.cluster.names)
    for device, steps in plan.timeline.live_bytes.items():
        own = [(ts, size) for pid, ts, size in memory if pid == names.index(device) + 1]
        assert own == [(round(time_s * 1e9) / 1000, size) for time_s, size in steps]


def test_predicted_and_measured_have_the_same_names() -> None:
    """What a run measured is on the threads of what was predicted, under the same names of layers."""
    model, inputs = zoo.transformer("small")
    cluster = baechi.Cluster.virtual(2)
    model = baechi.distribute(model, inputs, cluster=cluster, placer="m-topo")
    with cluster:
        model(*inputs).sum().backward()
        measured = baechi.last_step(model)
    predicted = baechi.plan_of(model).timeline
    one, other = (threads(events(report.to_trace(timeline))) for timeline in (predicted, measured))
    used, used_measured = ({name for name, own in slices.items() if own} for slices in (one, other))
    assert used <= used_measured
    assert all("host" in " ".join(name) for name in used_measured - used)  # constants, outputs
    layers = [name for name in baechi.plan_of(model).order if not name.startswith("glue:")]
    for slices in (one, other):
        assert set(layers) <= {e["name"] for own in slices.values() for e in own}
    both = threads(events(report.to_trace(predicted, measured)))
    assert {name for name, _ in both} == {
        f"{which} {end}" for which in ("predicted", "measured") for end in ("cpu:0", "cpu:1", "host")
    }


def test_work_around_the_model_has_a_name() -> None:
    """What belongs to no layer is said to."""
    timeline = Timeline((Span("compute", "", "cpu:0", 0.0, 1.0, "other"),), 0.0, {"cpu:0": 0})
    (slice_,) = [e for e in events(report.to_trace(timeline)) if e["ph"] == "X"]
    assert slice_["name"] == "(around the model)" and slice_["dur"] == 1e6


def test_neighbours_shorter_than_a_nanosecond_apart() -> None:
    """Rounded to nanoseconds, one still ends where the next begins."""
    ends = [1.6e-9 * place for place in range(9)]
    spans = [Span("compute", "a", "cpu:0", start, end) for start, end in pairwise(ends)]
    found = events(report.to_trace(Timeline(tuple(spans), ends[-1], {"cpu:0": 0})))
    slices = [(round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in found if e["ph"] == "X"]
    assert all(start + length == after for (start, length), (after, _) in pairwise(slices))
