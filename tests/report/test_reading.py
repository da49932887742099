"""What bounds a step, on steps of which one knows it."""

from dataclasses import replace
from typing import Any

from place.graphs import FREE, branches, chain, cluster_of, graph_of

from baechi.records import HostCosts, Link, Plan, Timeline
from baechi.records.timeline import Span
from baechi.report.reading import Reading, read
from baechi.report.summary import summary


def reading(plan: Plan) -> Reading:
    return read(plan, plan.timeline)


def everywhere(graph: Any, device: str = "d0", **others: str) -> dict[str, str]:
    return {name: others.get(name, device) for name in graph.placed()}


def test_serial() -> None:
    """A chain over two devices: one computes at a time, another device would not help."""
    graph = chain(6)
    found = reading(Plan(graph, cluster_of(99, 999, link=FREE), everywhere(graph, l4="d1", l5="d1")))
    assert (found.bound, found.where) == ("serial", "d0")
    assert "on average 1.0 of 2 devices compute" in found.why
    assert "d0 computes 67 % of the critical path" in found.change and "not speed" in found.change


def test_work() -> None:
    """Branches on one device, another one idle: move some of them there."""
    graph = branches(4, 3)
    found = reading(Plan(graph, cluster_of(400, 400, link=FREE), everywhere(graph)))
    assert (found.bound, found.where, found.dependencies_s) == ("work", "d0", 5)
    assert "bound by the work on d0, which computes 100 % of it" in found.why and "5.00 s" in found.why
    assert "some of them on d1 (idle 100 % of the step, 400 B free)" in found.change


def test_work_on_all_devices() -> None:
    """Branches on two devices that are both busy: only more, or faster ones, help."""
    graph = branches(4, 9)
    halves = {name: f"d{int(name[1]) // 2}" if name[0] == "b" else "d0" for name in graph.placed()}
    found = reading(Plan(graph, cluster_of(999, 999, link=FREE), halves))
    assert found.bound == "work" and "one more device" in found.change


def test_transfers_of_many_bytes() -> None:
    """A slow link between two layers: it is named, with what is dearest on it."""
    graph = chain(3)
    found = reading(Plan(graph, cluster_of(99, 99, link=Link(0.0, 0.1)), everywhere(graph, l2="d1")))
    assert (found.bound, found.where) == ("transfer", "d0>d1")
    assert "bound by transfers: 93 %" in found.why and "over the link d0>d1 (40.00 s)" in found.why
    assert "the output of l1, 4 B" in found.change and "faster link" in found.change


def test_transfers_of_few_bytes() -> None:
    """Many small transfers over a slow link: fewer of them help, a faster link does not."""
    graph = chain(6)
    where = {name: f"d{int(name[1]) % 2}" for name in graph.placed()}
    found = reading(Plan(graph, cluster_of(99, 99, link=Link(9.0, 1e9)), where))
    assert found.bound == "transfer" and "3 small ones, mostly latency" in found.change


def test_host() -> None:
    """Small kernels: the host is what takes the time."""
    nodes = {name: {"forward_s": 0.1, "host_forward_s": 1} for name in "abc"}
    graph = graph_of(nodes, [("a", "b", 0), ("b", "c", 0)])
    found = reading(Plan(graph, cluster_of(9, link=FREE, launch_s=1), everywhere(graph)))
    assert found.bound == "host" and "larger batch" in found.change and found.host_s > found.compute_s


def test_the_host_beside_what_bounds_the_step() -> None:
    """Kernels a little shorter than what the host takes for them: it is told, though computing takes more."""
    for forward_s, told in ((1.0, True), (9.0, False)):
        nodes = {name: {"forward_s": forward_s, "host_forward_s": 1.5} for name in "abc"}
        graph = graph_of(nodes, [("a", "b", 0), ("b", "c", 0)])
        found = reading(Plan(graph, cluster_of(9, link=FREE, launch_s=1), everywhere(graph)))
        assert found.bound == "serial"
        assert ("of its critical path devices wait for kernels" in found.change) == told


def test_the_runtimes_share() -> None:
    """Where the runtime's own work is charged, the reading says how much it is at most."""
    nodes = {name: {"forward_s": 0.1, "host_forward_s": 1} for name in "abc"}
    graph = graph_of(nodes, [("a", "b", 0), ("b", "c", 0)])
    costs = HostCosts(layer_call_s=2.0, transfer_s=1.0)
    cluster = replace(cluster_of(9, 9, link=FREE, launch_s=1), host=costs)
    found = reading(Plan(graph, cluster, everywhere(graph, c="d1")))
    assert found.bound == "host" and "the runtime itself takes the host up to 7.00 s" in found.why


def test_the_hosts_share() -> None:
    """Where a run counted the host's work, the reading, the verdict and the line of `distribute` say it."""
    graph = chain(3)
    plan = Plan(graph, cluster_of(99, 99), everywhere(graph, l2="d1"))
    spans = (Span("compute", "l0", "d0", 0.0, 10e-3), Span("compute", "l2", "d1", 20e-3, 34e-3))
    for host_us, told in ((31_000, True), (20_000, False)):
        ran = Timeline(spans, 34e-3, {"d0": 9, "d1": 9}, {"host_us": host_us}, source="dry run")
        known = replace(plan, dry=ran)
        assert ("; the host is the limit: 31.00 ms of 34.00 ms; devices idle 65 %" in summary(known)) == told
        if told:
            found = read(known, ran)
            assert found.bound == "host" and "works for 31.00 ms of 34.00 ms" in found.why
            assert "a larger batch" in found.change


def test_nothing() -> None:
    """An empty step has a reading too."""
    found = reading(Plan(graph_of({}), cluster_of(9), {}))
    assert found.bound == "nothing" and "0 B of 9 B (0 %)" in found.fullest


def test_fullest() -> None:
    """Fullest is the device with the largest part of its memory taken, not the most bytes."""
    graph = chain(3)
    found = reading(Plan(graph, cluster_of(1000, 20), everywhere(graph, l2="d1")))
    assert found.fullest.startswith("d1 is the fullest: 19 B of 20 B (95 %)")


def test_values_that_the_code_reads() -> None:
    """Two branches, one after the other since the code looks at a value: said, with what it costs."""
    awaited = {"order_only": True, "host_waits": True}
    nodes = {name: {"forward_s": 2.0} for name in ("left", "right")}
    plans = [
        Plan(graph_of(nodes, edges), cluster_of(99, 99), {"left": "d0", "right": "d1"})
        for edges in ([("left", "right", awaited)], [("left", "right", {"order_only": True})])
    ]
    assert reading(plans[0]).change.endswith(
        "The code reads values of left (.item(), a condition, a mask as index), and what it calls next "
        "waits for them: without that, dependencies alone would take 2.00 s less."
    )
    assert "reads values" not in reading(plans[1]).change
