"""Pipelines on the clocks of the emulated cluster, beside what was predicted, and beside dry runs."""

from dataclasses import replace

import pytest
from run.pipeline.nets import WHERE, Blocks, noise, seeded

import baechi
from baechi.records import HostCosts
from baechi.run.dry.dry_run import dry_run
from baechi.run.pipeline.batch.shares import by_rows
from baechi.run.pipeline.microbatches import Microbatches

X, Y = noise(6, 6), noise(6, 6, seed=2)
COST_S = 1e-3


def planned(host: HostCosts | None, order: str) -> baechi.Pipeline:
    """Three microbatches over two emulated devices."""
    cluster = replace(baechi.Cluster.virtual(2), host=host)
    graph = baechi.profile(
        seeded(Blocks), (X, Y), cluster=cluster, microbatches=3, training=True, source="estimate"
    )
    return baechi.pipeline(baechi.Plan.from_device_map(graph, cluster, WHERE), 3, order)  # type: ignore[arg-type]


def ran(pipeline: baechi.Pipeline) -> baechi.Timeline:
    """The call on the emulated cluster."""
    model = baechi.distribute(seeded(Blocks), plan=pipeline, loss_weights="rows")
    with pipeline.plan.cluster:
        for _ in range(2):
            model.zero_grad()
            model(X, Y)["loss"].backward()
        return pipeline.plan.cluster.emulation.timeline()


@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
def test_tasks_are_charged(order: str) -> None:
    """Measured and predicted steps grow by each task's time, but for what comes before the first kernel."""
    free, charged = planned(None, order), planned(HostCosts(task_s=COST_S), order)
    tasks = len(free.order)
    assert ran(charged).makespan_s - ran(free).makespan_s == pytest.approx((tasks - 1) * COST_S, rel=1e-6)
    grown_s = charged.timeline.makespan_s - free.timeline.makespan_s
    assert (tasks - 1) * COST_S <= grown_s <= tasks * COST_S + 1e-9


def test_a_dry_run_is_the_run() -> None:
    """The same peaks, and the same step."""
    pipeline = planned(None, "1f1b")
    dry = dry_run(
        seeded(Blocks),
        baechi.Inputs(X, Y),
        pipeline.plan,
        reorder=False,
        microbatches=Microbatches(pipeline, weigh=by_rows),
    )
    measured = ran(pipeline)
    assert dict(dry.peak_bytes) == dict(measured.peak_bytes)
    assert dry.makespan_s == pytest.approx(measured.makespan_s, rel=5e-3)
