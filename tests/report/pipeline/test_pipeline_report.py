"""The report on a pipeline: where time goes, what bounds the step, a picture of it."""

from dataclasses import replace

import pytest
from records.pipeline.chains import chain, equal_chain, over

from baechi.records import Cluster, Device, Link, Plan
from baechi.records.pipeline import Pipeline
from baechi.report import to_html, to_text, to_trace
from baechi.report.pipeline import PipelineFacts
from baechi.report.pipeline.text import picture
from baechi.report.pipeline.unsplit import against_unsplit
from baechi.report.summary import summary
from baechi.simulate.pipeline import ordered


def test_where_time_goes() -> None:
    """1F1B, two stages of 1 and 2 s, three microbatches: 12 s, of which each device computes 9."""
    facts = PipelineFacts(ordered(equal_chain(2), 3, "1f1b"))
    rows = [(d.name, d.busy_s, d.fill_s, d.waiting_s, d.drain_s, d.in_flight) for d in facts.devices]
    assert rows == [("cpu:0", 9, 0, 3, 0, 2), ("cpu:1", 9, 1, 0, 2, 1)]
    assert facts.bubble == 1 - 18 / 24
    assert facts.host_share == 0


def test_a_measured_step_beside() -> None:
    """It is compared with a step of its kind only."""
    pipeline = ordered(equal_chain(2), 3, "1f1b")
    step = pipeline.timeline
    forward = replace(step, spans=tuple([span for span in step.spans if span.phase == "forward"]))
    assert (step.mode, forward.mode) == ("training", "inference")
    for record in (pipeline, pipeline.plan):
        for form in (to_text, to_html):
            assert "Measured: 12.00 s." in " ".join(form(record, step).split())
            assert "in inference, where training is predicted" in " ".join(form(record, forward).split())


@pytest.mark.parametrize(("devices", "whole_s", "told"), [
    ([0, 1], 24.0, ""),
    ([0, 1], 9.0, "microbatches=3 is slower than none: the pipeline fills and drains"),
    ([0, 0], 9.0, "microbatches=3 is slower than none: all layers lie on cpu:0"),
    ([0, 0], None, "microbatches=3 saves memory, no time: all layers lie on cpu:0"),
])  # fmt: skip
def test_what_gains_nothing(devices: list[int], whole_s: float | None, told: str) -> None:
    """Slower than without, or on one device: the line and the report say so, and why."""
    made = ordered(over(chain([(1.0, 2.0)] * 2), devices), 3)
    if whole_s is not None:
        alone = over(chain([(whole_s / 6, whole_s / 3)] * 2), [0, 0])
        made = replace(made, unsplit=replace(alone, cluster=made.cluster))
    for shown in (summary(made), to_text(made, width=1000), to_html(made).replace("&#x27;", "'")):
        assert told in shown and ("microbatches=3 " in shown) == bool(told)
        assert (" leave microbatches out" in shown) == (bool(told) and whole_s is not None)


def test_the_picture() -> None:
    """A letter a microbatch, small in forward and large in backward: 66 columns for 12 s."""
    lines = picture(PipelineFacts(ordered(equal_chain(2), 3, "1f1b"))).splitlines()
    assert lines[1].startswith("cpu:1 ·····aaaaaaAAAAAAAAAAAbbbbb")
    assert {letter for line in lines for letter in line.split()[1]} == set("abcABC·")
    assert all(len(line) == len("cpu:0 ") + 66 for line in lines)


def bound_of(pipeline: Pipeline) -> str:
    bound, why, change = PipelineFacts(pipeline).reading
    assert why.endswith(".") and change.endswith(".")
    return bound


def roomy(plan: Plan, memory: int) -> Plan:
    devices = tuple(replace(device, memory_bytes=memory) for device in plan.cluster.devices)
    return replace(plan, cluster=replace(plan.cluster, devices=devices))


def test_what_bounds_it() -> None:
    """Each kind, on a pipeline made for it."""
    assert bound_of(ordered(equal_chain(4), 4)) == "bubble"
    assert bound_of(ordered(equal_chain(2), 32)) == "work"
    assert bound_of(ordered(over(chain([(1.0, 2.0)] * 4), range(4), Link(2.0, 1e9)), 4)) == "waiting"
    assert bound_of(ordered(over(chain([(1.0, 2.0), (3.0, 6.0)]), range(2)), 16)) == "balance"
    assert bound_of(ordered(over(chain([(1.0, 2.0)] * 2, size=5), range(2), Link(0.0, 1.0)), 16)) == "link"
    slow = chain([(1.0, 2.0)] * 2)
    for name in slow.placed():
        slow.nodes[name].update(host_forward_s=2.0, host_backward_s=3.0)
    assert bound_of(ordered(over(slow, range(2)), 16)) == "host"
    large = chain([(1.0, 2.0)] * 3)
    for name in large.placed():
        large.nodes[name]["saved_bytes"] = 10
    assert bound_of(ordered(roomy(over(large, range(3)), 10), 6)) == "memory"
    assert bound_of(ordered(over(chain([(0.0, 0.0)]), [0]), 2)) == "nothing"


def test_the_balance_names_the_layers() -> None:
    """What the fullest device has most of is named, with what must share its device."""
    graph = chain([(1.0, 2.0), (3.0, 6.0), (0.5, 1.0)])
    graph.nodes["l1"]["colocate"] = graph.nodes["l2"]["colocate"] = "tied"
    _, why, change = PipelineFacts(ordered(over(graph, [0, 1, 1]), 16)).reading
    assert "1.6 times as long" in why
    assert "l1 and 1 with it, 100 % of its work" in change


def test_all_of_it() -> None:
    """The text has the devices, what was tried, the front and the picture; `print` shows it."""
    made = ordered(equal_chain(2), 3)
    text = to_text(made)
    assert "in 3 microbatches on 2 of 2 devices (2 x A100-80GB): 2 stages" in text
    for part in ("why not faster?", "Devices", "Tried", "gpipe", "Memory against time", "cpu:1 ····"):
        assert part in text
    assert "why not faster?" in str(made)
    assert "Tried" not in to_text(ordered(equal_chain(2), 3, "1f1b"))


def test_beside_the_plan_without_microbatches() -> None:
    """Steps, what bounds them, how many devices compute and their peaks; nothing where it is not known."""
    made = ordered(equal_chain(2), 3)
    assert not against_unsplit(PipelineFacts(made))
    alone = over(chain([(3.0, 6.0)] * 2), [0, 0])
    known = replace(made, unsplit=replace(alone, cluster=made.plan.cluster, placer="single"))
    (table,) = against_unsplit(PipelineFacts(known))
    assert table.columns == ("", "in 3 microbatches", "without, by single")
    assert table.rows[:3] == (
        ("step", "12.00 s (1.50 ×)", "18.00 s"),
        ("bound by", "filling and draining", "one layer after the other"),
        ("devices that compute", "1.5 of 2", "1.0 of 2"),
    )
    assert [row[0] for row in table.rows[3:]] == ["peak of cpu:0", "peak of cpu:1"]
    assert table.note.startswith("Without microbatches, the step is serial")
    for shown in (to_text(known), to_html(known)):
        assert "Beside the plan without microbatches" in shown and "filling and draining" in shown


def test_the_front_of_the_report() -> None:
    """Fastest first, each with less memory than the one before."""
    graph = chain([(1.0, 2.0)] * 3)
    for name in graph.placed():
        graph.nodes[name]["saved_bytes"] = 10
    front = PipelineFacts(ordered(over(graph, range(3)), 6)).front
    sizes = [max(tried.peak_bytes.values()) for tried in front]
    assert sizes == sorted(set(sizes), reverse=True)
    assert [tried.step_s for tried in front] == sorted([tried.step_s for tried in front])
    assert sizes[-1] == 10


def test_the_trace_says_which_microbatch() -> None:
    """Slices carry the microbatch; steps without microbatches say nothing."""
    made = ordered(equal_chain(2), 3)
    assert '"microbatch": 2' in to_trace(made.timeline)
    assert "microbatch" not in to_trace(made.plan.timeline)


def test_one_microbatch() -> None:
    """A pipeline of one is its plan's step."""
    plan = equal_chain(2)
    made = Pipeline(plan, 1, ordered(plan, 1, "gpipe").order)
    assert made.timeline is plan.timeline
    assert "in 1 microbatch on" in to_text(made)


@pytest.mark.parametrize("devices", [1, 3])
def test_idle_devices_are_left_out(devices: int) -> None:
    """Devices without a stage have no row."""
    cluster = Cluster(tuple(Device(f"d{n}", memory_bytes=1) for n in range(devices + 1)))
    graph = chain([(1.0, 2.0)] * devices)
    plan = Plan(graph, cluster, {name: f"d{n}" for n, name in enumerate(graph.placed())})
    assert len(PipelineFacts(ordered(plan, 2)).devices) == devices
