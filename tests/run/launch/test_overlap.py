"""What a plan lets run side by side does."""

import pytest
import torch
from order.interleaved import interleaved
from run.launch.translator import DEVICES, EARLY_DECODER, Translator
from run.launched import LAUNCHERS

import baechi

SIDE_BY_SIDE = (("e0", "d0"), ("e1", "d1"), ("e2", "d2"), ("e3", "d3"))


def slow_cluster() -> baechi.Cluster:
    """Two devices that compute for half a second where links and the host take microseconds."""
    devices = [
        baechi.Device(name, "slow", 10**9, flops_per_s={"float32": 1e6}, bytes_per_s=1e6)
        for name in ("cpu:0", "cpu:1")
    ]
    return baechi.Cluster(tuple(devices), link=baechi.Link(1e-6, 1e9), emulated=True, launch_s=1e-9)


@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_the_planned_overlap_is_measured(training: bool, reorder: str) -> None:
    """A decoder that starts early runs beside the encoder: as planned, sooner than in the code's order."""
    cluster, model = slow_cluster(), Translator().train(training)
    inputs = (torch.ones(64, 64), torch.ones(64, 64))
    graph = baechi.profile(model, inputs, cluster=cluster, training=training)
    plan = interleaved(graph, cluster, DEVICES, EARLY_DECODER)
    baechi.assign(model, plan, reorder=reorder)
    comparison = baechi.check(model, inputs)
    assert comparison.equal and comparison.gradient_difference == 0 and comparison.in_plan_order
    one, off, on = comparison.ran
    assert on.launched == {"cpu:0": ("e0", "e1", "d2", "d3", "join"), "cpu:1": ("d0", "d1", "e2", "e3")}
    assert on.forced == () and on.deferred == 2  # `e2` and `e3`, until `d1`
    assert (one.deferred, off.deferred) == (0, 0)
    assert one.timeline is not None and off.timeline is not None and on.timeline is not None

    for timeline in (plan.timeline, on.timeline):
        compute = [s for s in timeline.spans if s.kind == "compute" and s.phase == "forward" and s.layer]
        spans = {span.layer: span for span in compute}
        for first, second in SIDE_BY_SIDE:
            together = min(spans[first].end_s, spans[second].end_s)
            together -= max(spans[first].start_s, spans[second].start_s)
            assert together > 0.99 * (spans[first].end_s - spans[first].start_s)
            assert spans[first].where != spans[second].where
    # four layers one after the other and the last one, in place of nine; the sum is a tenth of one
    assert on.timeline.makespan_s / off.timeline.makespan_s == pytest.approx(5.1 / 9.1, rel=0.01)
    assert off.timeline.makespan_s == pytest.approx(one.timeline.makespan_s, rel=1e-4)
    off_by = abs(on.timeline.makespan_s / plan.timeline.makespan_s - 1)
    assert off_by < (0.015 if training else 1e-4)  # in training the loss is nobody's layer
