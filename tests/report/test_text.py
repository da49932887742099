"""The report says what bounds the step, where layers lie, how full devices are, what travels."""

import json

import pytest
import torch
from place.graphs import chain, cluster_of

import baechi
from baechi import report, zoo
from baechi.records import Plan, Timeline
from baechi.report.facts import Facts


def plan(n: int = 3) -> Plan:
    model, inputs = zoo.transformer("small")
    cluster = baechi.Cluster.virtual(n, memory="1MiB")
    graph = baechi.profile(model, inputs, cluster=cluster)
    return baechi.place(graph, cluster, "random:0", optimizer="adam")


@pytest.fixture(scope="module")
def ran() -> tuple[Plan, Timeline]:
    """A plan, and a step of it that was run."""
    model, inputs = zoo.transformer("small")
    cluster = baechi.Cluster.virtual(2)
    model = baechi.distribute(model, inputs, cluster=cluster, placer="random:0")
    with cluster:
        model(*inputs).sum().backward()
        return baechi.plan_of(model), baechi.last_step(model)


def test_report_names_what_matters() -> None:
    """Model, reading, devices, limits, placement, critical path, transfers, waits and step are all there."""
    text = report.to_text(plan())
    for words in (
        "Transformer, training",
        "3 of 3 devices",
        "why not faster?",
        "is the fullest",
        "what to change",
        "cpu:2",
        "1.00 MiB",
        "optimizer",
        "Critical path",
        "Cut edges",
        "gpu-topo",
        "Predicted step",
    ):
        assert words in text


def test_report_names_ops_that_lie_apart() -> None:
    """Where they lie, and where they would by rule; no table where there are none."""
    graph = chain(3)
    graph.nodes["l1"].update(kind="glue", follows="l0")
    title = "Functional ops that lie apart from what they follow"
    apart, together = (
        report.to_text(Plan(graph, cluster_of(999, 999), dict(zip(("l0", "l1", "l2"), devices, strict=True))))
        for devices in (("d0", "d1", "d0"), ("d0", "d0", "d1"))
    )
    assert ["l1", "d1", "d0"] in [line.split() for line in apart[apart.index(title) :].split("\n")]
    assert title not in together


def test_report_on_one_device() -> None:
    """One device: everything is there, nothing travels between devices but the inputs."""
    text = report.to_text(plan(1))
    assert "everything" in text and "1 of 1 devices" in text and "Cut edges: 2 transfers" in text


def test_no_transfers_at_all() -> None:
    """Where nothing travels the report says so."""
    graph = chain(3)
    graph.remove_node("input:x")
    text = report.to_text(Plan(graph, cluster_of(99, 99), dict.fromkeys(graph.placed(), "d0")))
    assert "Nothing travels between devices." in text and "Nothing lies on d1." in text


def test_inference_has_no_gradients() -> None:
    """What there is none of in inference has no column."""
    graph = chain(3)
    text = report.to_text(Plan(graph, cluster_of(99), dict.fromkeys(graph.placed(), "d0")))
    assert "gradient" not in text and "optimizer" not in text and "held" in text


def test_bytes_add_up() -> None:
    """Weights, optimizer, saved bytes or gradients, whichever are more, and passing bytes are the peak."""
    for device in Facts(plan()).devices:
        turn = max(device.grad_bytes, device.kept_bytes)
        parts = device.weight_bytes + device.optimizer_bytes + turn
        assert parts <= device.peak_bytes and parts + device.passing_bytes == device.peak_bytes
        assert device.optimizer_bytes == 2 * device.grad_bytes > 0


def test_candidates_are_shown() -> None:
    """What `auto` tried is told with its predicted step and peak."""
    model, inputs = zoo.transformer("small")
    cluster = baechi.Cluster.virtual(2)
    found = baechi.place(baechi.profile(model, inputs, cluster=cluster), cluster)
    text = " ".join(report.to_text(found).split())
    assert "Tried" in text and "m-etf" in text and "auto (" in text and "largest peak" in text


def test_measured_beside_predicted(ran: tuple[Plan, Timeline]) -> None:
    """A step that was run: its time, peaks, reading, and what waited and was forced."""
    found, measured = ran
    text = report.to_text(found, measured)
    for words in ("Measured: ", "As measured", "forced", "deferred"):
        assert words in text and words not in report.to_text(found)


def test_json(ran: tuple[Plan, Timeline]) -> None:
    """The facts as JSON hold the same, in seconds and bytes."""
    found, measured = ran
    body = json.loads(Facts(found, measured).to_json())
    assert body["step_s"] == found.timeline.makespan_s and body["measured"]["step_s"] == measured.makespan_s
    assert {d["name"]: d["peak_bytes"] for d in body["devices"]} == dict(found.timeline.peak_bytes)
    assert body["reading"]["bound"] == Facts(found).reading.bound
    assert sum(
        span["end_s"] - span["start_s"] + span["idle_s"] for span in body["critical_path"]
    ) == pytest.approx(body["step_s"])
    assert "measured" not in json.loads(Facts(found).to_json())


@pytest.mark.parametrize("size", [60, 200])
def test_any_width(size: int) -> None:
    """The report fits the width that it is given."""
    assert max(len(line) for line in report.to_text(plan(), width=size).splitlines()) <= size


def test_on_one_device_the_model_computes() -> None:
    """A dry run of a plan on one device sees no layers: what computes there is not the caller."""
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    cluster = baechi.Cluster.virtual(2, memory="1GiB", like="CPU")
    baechi.distribute(model, torch.randn(256, 512), cluster=cluster, placer="single", optimizer="adam")
    _, _, path = report.to_text(baechi.plan_of(model)).partition("Critical path")
    assert "the model, backward" in path and "the caller, backward" not in path
