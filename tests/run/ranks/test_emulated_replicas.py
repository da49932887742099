"""Emulated replicas: the sum of gradients is hidden where other stages go backward long enough.

stage 0   F0 F0 F0 B0       B0       B0 [sum]        exposed: it ends last
stage 1      F1 B1 F1 B1 F1 B1 [sum]                 hidden, if it is shorter than B0
"""

from dataclasses import replace
from itertools import product
from math import ceil
from typing import Any

import pytest
from run.ranks.emulation import Emulated, emulated
from run.ranks.models import ROWS, built
from run.ranks.processes import Ranks

import baechi
from baechi.records.timeline import SUM

NEAR, FAR = baechi.Link(1e-6, 1e11), baechi.Link(3e-4, 1e6)
NUMBER, RATE = 3, 1e7


def cluster_of(between: baechi.Link, within: baechi.Link = NEAR) -> baechi.Cluster:
    """Two replicas of two slow devices; hosts issue at once."""
    made = baechi.Cluster.virtual(4, memory="1GiB", ranks=True)
    devices = tuple([replace(one, bytes_per_s=RATE) for one in made.devices])
    names = made.names
    links = {(a, b): within for group in (names[:2], names[2:]) for a, b in product(group, group) if a != b}
    return replace(made, devices=devices, links=links, link=between, launch_s=0.0)


def planned(between: baechi.Link, replicas: int = 2) -> baechi.Replicas:
    """A chain in two stages, of which the first one ends last."""
    model, batch = built("drops")
    whole = cluster_of(between)
    graph = baechi.profile(model, batch(), cluster=whole, source="estimate", microbatches=NUMBER)
    part = whole.part(whole.names[:2])
    places = {f"blocks.{k}": part.names[k // 2] for k in range(4)} | {"head": part.names[1]}
    pipeline = baechi.pipeline(baechi.Plan.from_device_map(graph, part, places), NUMBER, "1f1b")
    groups = (whole.names[:2], whole.names[2:])
    return baechi.Replicas(pipeline, whole, groups)


def weights_bytes(*modules: str) -> int:
    model, _ = built("drops")
    return sum(8 * one.numel() for name in modules for one in model.get_submodule(name).parameters())


STAGES = [weights_bytes("blocks.0", "blocks.1"), weights_bytes("blocks.2", "blocks.3", "head")]


def by_hand_s(link: baechi.Link, stage: int) -> float:
    """A ring of two: two turns, each with a half."""
    return 2 * (link.latency_s + ceil(STAGES[stage] / 2) / link.bytes_per_s)


def of(spans: list[tuple[Any, ...]], where: str, phase: str | None = None) -> list[tuple[Any, ...]]:
    return sorted(
        [one for one in spans if one[0] == where and phase in (None, one[2])], key=lambda one: one[3]
    )


def sum_of(step: Emulated, stage: int, size_bytes: int | None = None) -> tuple[float, float]:
    """When the sum of a stage begins and ends."""
    (found,) = of(step.spans, f"rank{stage}/cpu:{stage}>rank{stage + 2}/cpu:{stage + 2}")
    assert found[1:3] == ("transfer", "backward")
    assert found[5] == (STAGES[stage] if size_bytes is None else size_bytes)
    return found[3], found[4]


@pytest.mark.parametrize(
    "between",
    [pytest.param(NEAR, id="near"), pytest.param(FAR, id="far", marks=pytest.mark.full)],
)
def test_a_sum_is_hidden_where_the_drain_is_long_enough(four: Ranks, between: baechi.Link) -> None:
    made = planned(between)
    text = made.pipeline.to_json()
    four.begin(emulated, "drops", text, 2, made.cluster.to_json())
    alone = emulated("drops", text)[0]  # one replica, in one process
    found = four.answers()
    for one in found:
        assert not isinstance(one, Exception), one
    first = [each[0] for each in found]
    for stage in (0, 1):
        assert first[stage].spans == first[stage + 2].spans
    ends_s = []
    for stage in (0, 1):
        device, step = f"rank{stage}/cpu:{stage}", first[stage]
        end_s, (begun_s, over_s) = alone.ends_s[device], sum_of(step, stage)
        assert step.ends_s[device] == end_s  # until there it is the step without replicas, to the digit
        assert begun_s == pytest.approx(end_s + 2 * STAGES[stage] / RATE, rel=1e-9)  # laid in a row
        assert over_s - begun_s == pytest.approx(by_hand_s(between, stage), rel=1e-9)
        (scaled,) = of(step.spans, device, "backward")  # by the gradient of the loss
        # behind the sum comes the mean; the last stage joins losses besides, of a few numbers
        late_s = scaled[3] - over_s - 2 * STAGES[stage] / RATE
        assert late_s == pytest.approx(0.0, abs=2e-5 if stage else 1e-12)
        updates = of(step.spans, device, "other")
        assert updates[-1][3] >= scaled[4]
        ends_s.append(scaled[4])
    drained_s = alone.ends_s["rank0/cpu:0"]
    assert (ends_s[1] < drained_s) == (between is NEAR)  # hidden, or not
    # the step is longer by the sum of the stage that ends last, with the row before it and the mean behind it
    more_s = by_hand_s(between, 0) + 4 * STAGES[0] / RATE
    assert max(ends_s) == ends_s[0] == pytest.approx(alone.makespan_s + more_s, rel=1e-9)

    model, batch = built("drops")
    dry = baechi.dry_run(model, batch(), made, optimizer="adamw")
    assert dry.makespan_s == pytest.approx(max(ends_s), rel=1e-9)
    sum_s, hidden_s = dry.sums_s
    assert sum_s == pytest.approx(sum(by_hand_s(between, stage) for stage in (0, 1)), rel=1e-9)
    begun_s, over_s = sum_of(first[1], 1)
    assert hidden_s == pytest.approx(min(over_s, drained_s) - begun_s, rel=1e-9)
    spans = [(s.where, s.kind, s.phase, s.start_s, s.end_s, s.size_bytes) for s in dry.spans]
    both = sorted([*found[0][1].spans, *found[1][1].spans])
    for said, was in zip(sorted(spans), both, strict=True):
        assert said[:3] == was[:3]
        assert said[3:] == pytest.approx(was[3:], rel=1e-9, abs=1e-15)
    peaks = {**found[0][1].peak_bytes, **{k: v for k, v in found[1][1].peak_bytes.items() if "rank1" in k}}
    assert {key: size for key, size in dry.peak_bytes.items() if size} == {
        key: size for key, size in peaks.items() if size
    }


@pytest.mark.nightly
def test_a_sum_begins_when_the_last_replica_is_there(four: Ranks) -> None:
    """The second replica has half as many rows: it waits for the first one."""
    made = planned(NEAR)
    found = four(emulated, "drops", made.pipeline.to_json(), 2, made.cluster.to_json(), ROWS // 2)
    for one in found:
        assert not isinstance(one, Exception), one
    for stage in (0, 1):
        slow, fast = found[stage][0], found[stage + 2][0]
        assert sum_of(slow, stage) == sum_of(fast, stage)
        device = f"rank{stage}/cpu:{stage}"
        assert fast.ends_s[device] + 2 * STAGES[stage] / RATE < 0.9 * sum_of(fast, stage)[0]


@pytest.mark.nightly
def test_sums_of_tied_weights_and_of_a_whole_step(four: Ranks) -> None:
    """Weights that two stages read, and a step without microbatches."""
    for name, number in (("skips", NUMBER), ("skips", 1)):
        model, batch = built(name)
        whole = cluster_of(FAR)
        graph = baechi.profile(model, batch(), cluster=whole, source="estimate", microbatches=number)
        part = whole.part(whole.names[:2])
        pipeline = baechi.pipeline(baechi.place(graph, part, "random:1"), number, "1f1b")
        made = baechi.Replicas(pipeline, whole, (whole.names[:2], whole.names[2:]))
        found = four(emulated, name, pipeline.to_json(), 2, whole.to_json())
        for one in found:
            assert not isinstance(one, Exception), one
        dry = baechi.dry_run(model, batch(), made, optimizer="adamw")
        sums = [span for span in dry.spans if span.layer == SUM]
        assert sum(span.size_bytes for span in sums) == 8 * sum(one.numel() for one in model.parameters())
        for stage, span in enumerate(sums):
            found_s = sum_of(found[stage][1], stage, span.size_bytes)
            assert (span.start_s, span.end_s) == pytest.approx(found_s, rel=1e-9)


def test_what_does_not_go() -> None:
    """Devices of all replicas have to be there."""
    model, batch = built("drops")
    made = planned(NEAR)
    real = replace(made.cluster, emulated=False)
    pipeline = replace(made.pipeline, plan=replace(made.pipeline.plan, cluster=real.part(real.names[:2])))
    with pytest.raises(ValueError, match="replicas run dry on emulated devices of ranks"):
        baechi.dry_run(model, batch(), baechi.Replicas(pipeline, real, made.groups))


@pytest.mark.full
def test_too_few_devices_are_refused(four: Ranks) -> None:
    made = planned(NEAR)
    for error in four(
        emulated,
        "drops",
        made.pipeline.to_json(),
        1,
        made.cluster.part(made.cluster.names[:3]).to_json(),
        ROWS,
        2,
    ):
        assert isinstance(error, baechi.errors.PlanError), error
        assert "2 replicas of 2 processes have 4: give all of them" in str(error)
