"""Records in a few lines, and the line that `distribute` says at its end."""

from dataclasses import replace

from place.graphs import branches, cluster_of

from baechi import report
from baechi.records import Cluster, Plan
from baechi.report.summary import summary


def spread(*memory_bytes: int) -> Plan:
    """Two branches, the second one on another device."""
    graph = branches(2, 2, training=True, model="Forked")
    where = {name: "d1" if name.startswith("b1") else "d0" for name in graph}
    return Plan(graph, cluster_of(*memory_bytes), where, placer="chain")


def test_the_line() -> None:
    """Devices, the step beside that of one device, and the fullest device."""
    plan = spread(200, 100)
    step = plan.timeline.makespan_s
    assert summary(plan) == f"Forked on d0 and d1: step {step:.2f} s instead of 12.00 s on one device, " + (
        f"fullest d1, {plan.timeline.peak_bytes['d1']} B of 100 B ({plan.timeline.peak_bytes['d1']} %)"
    )
    assert "no single device holds it: d0 is short of" in summary(spread(30, 25))
    whole = Plan(plan.graph, plan.cluster, dict.fromkeys(plan.device_of, "d1"))
    assert summary(whole).startswith("Forked on d1: step 12.00 s, fullest d1")


def test_many_devices_are_counted() -> None:
    """More than three devices are a number."""
    graph = branches(6, 1)
    names = list(graph.placed())
    plan = Plan(graph, cluster_of(*[99] * 8), {name: f"d{number}" for number, name in enumerate(names)})
    assert summary(plan).startswith("model on 8 of 8 devices (8 x cpu): step")


def test_repr_of_a_plan() -> None:
    """A line, and one for each device; nothing is simulated for it."""
    plan = spread(200, 100)
    assert repr(plan) == (
        "Plan by chain: Forked on 2 of 2 devices\n"
        "  d0, 200 B: 4 layers, 0 functional ops\n"
        "  d1, 100 B: 2 layers, 0 functional ops"
    )
    assert "timeline" not in vars(plan)
    step, peak = plan.timeline.makespan_s, plan.timeline.peak_bytes["d1"]
    assert f"on 2 of 2 devices, step {step:.2f} s (simulated)\n" in repr(plan)
    assert repr(plan).endswith(f"  d1, {peak} B of 100 B ({peak} %): 2 layers, 0 functional ops")


def test_a_printed_plan_is_the_report() -> None:
    """`print(plan)` shows the text report, as wide as the terminal, without blanks at the ends of lines."""
    plan = spread(200, 100)
    assert str(plan) == report.to_text(plan, width=80).rstrip("\n")
    assert "why not faster?" in str(plan) and " \n" not in str(plan)


def test_other_records() -> None:
    """Equal devices are one line, many lines are counted."""
    assert repr(Cluster.uniform(3, like="RTX-3090")).splitlines() == [
        "Cluster of 3 devices",
        "  device:0 to device:2: RTX-3090, 22.35 GiB",
        "  links: 29.80 GiB/s after 10.0 µs",
    ]
    assert repr(Cluster.virtual(1, memory="1GiB")).startswith("Cluster of 1 device, emulated\n  cpu:0: A100")
    many = cluster_of(*range(1, 13))
    assert "  and 4 more kinds\n" in repr(many) and repr(many).endswith("pairs have their own")
    plan = spread(200, 100)
    assert (
        repr(plan.graph)
        == str(plan.graph)
        == (
            "LayerGraph of Forked, training\n  6 layers, 0 functional ops, 0 inputs, 6 edges\n"
            "  30 B of weights; times are estimated"
        )
    )
    peaks = plan.timeline.peak_bytes
    assert repr(replace(plan.timeline, source="measured")).splitlines() == [
        f"Timeline, measured, training: step {plan.timeline.makespan_s:.2f} s, "
        f"{len(plan.timeline.spans)} spans",
        f"  d0: peak {peaks['d0']} B",
        f"  d1: peak {peaks['d1']} B",
    ]
