"""Steps on real devices, timed: the same record as the emulated cluster's."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from architectures import OWN, Architecture
from backend.real.fake_driver import FakeDriver
from backend.real.parts import graph_of, parts
from same import assert_same, step

import baechi
from baechi import Cluster, Plan, Timeline
from baechi.backend.real.devices import TorchDevices
from baechi.backend.real.step_clock import StepClock

BRANCHING = next(row for row in OWN if row.name == "branching")


def planned(architecture: Architecture, placer: str = "random:0") -> Plan:
    return baechi.place(graph_of(architecture, training=True), parts(2), placer)


def measured(plan: Plan, architecture: Architecture) -> Timeline:
    model = baechi.assign(architecture.build(), plan)
    with plan.cluster:
        step(model, architecture.inputs(), training=True)
        return baechi.last_step(model)


def emulated(plan: Plan, architecture: Architecture) -> Timeline:
    """The same plan on emulated devices."""
    cluster = Cluster.virtual(len(plan.cluster), like="CPU")
    names = dict(zip(plan.cluster.names, cluster.names, strict=True))
    device_of = {layer: names[device] for layer, device in plan.device_of.items()}
    return measured(Plan(plan.graph, cluster, device_of, plan.order), architecture)


def what(timeline: Timeline) -> Counter[tuple[str, str, str, str]]:
    """What ran where, by layers: glue is not always seen to run where the layers are."""
    spans = [(s.kind, s.layer, s.where.replace("/", ":"), s.phase) for s in timeline.spans if s.layer]
    return Counter(span for span in spans if span[0] == "compute" and span[3] != "other")


@pytest.mark.parametrize("name", ["branching", "siamese", "u_net", "buffers"])
def test_the_record_is_the_emulators(name: str) -> None:
    """Every layer, forward and backward, on its device; every transfer that the emulator counts."""
    architecture = next(row for row in OWN if row.name == name)
    plan = planned(architecture)
    here, there = measured(plan, architecture), emulated(plan, architecture)
    only_here = {span[1] for span in what(here).keys() - what(there).keys()}
    assert what(there).keys() <= what(here).keys()
    assert all(plan.graph.amount(layer, "kernels") == 0 for layer in only_here)  # they make views
    for key in ("transfers", "transfer_bytes"):
        assert here.counters[key] == there.counters[key] > 0
    for timeline in (here, there):
        assert [s.start_s for s in timeline.spans] == sorted(s.start_s for s in timeline.spans)
    forward_s = max(s.end_s for s in here.spans if s.phase == "forward")
    assert all(s.start_s >= forward_s for s in here.spans if s.phase == "backward")
    assert 0 < here.makespan_s <= max(s.end_s for s in here.spans)


def test_transfers_carry_the_layer_that_made_them() -> None:
    """Forward that whose output it is; backward that whose backward made the gradient."""
    timeline = measured(planned(BRANCHING), BRANCHING)
    layers = {s.layer for s in timeline.spans if s.kind == "compute"}
    sent = [s for s in timeline.spans if s.kind == "transfer" and "cpu/0>cpu/1" in s.where]
    assert sent and {s.layer for s in sent} <= layers


def test_timing_is_asked_for() -> None:
    """Outside of `with` nothing is measured, and the numbers are the same."""
    plan = planned(BRANCHING)
    model = baechi.assign(BRANCHING.build(), plan)
    plain = step(model, BRANCHING.inputs(), training=True)
    with pytest.raises(baechi.BaechiError, match="inside `with cluster:`"):
        baechi.last_step(model)
    with plan.cluster, plan.cluster:
        assert_same(plain, step(model, BRANCHING.inputs(), training=True))
        first = baechi.last_step(model)
    assert baechi.last_step(model).counters == first.counters
    step(model, BRANCHING.inputs(), training=True)
    with pytest.raises(baechi.BaechiError, match="inside `with cluster:`"):
        baechi.last_step(model)


def test_one_device() -> None:
    """A model that lies whole on one device is one span each way."""
    timeline = measured(planned(BRANCHING, "single"), BRANCHING)
    assert [(s.kind, s.phase) for s in timeline.spans if s.kind == "compute"] == [
        ("compute", "forward"),
        ("compute", "backward"),
    ]


def test_clusters_to_plan_for_cannot_be_run() -> None:
    """The devices that are not here are named."""
    with pytest.raises(baechi.BaechiError, match="device:0, device:1 is not in this machine"):
        with Cluster.uniform(2):
            pass


# --- by events -----------------------------------------------------------------------------------


@dataclass
class Ticks(FakeDriver):
    """Events of a clock that a test sets; peaks, too."""

    now_s: float = 0.0
    peak: int = 7

    def timed_event(self, device: torch.device) -> float:
        return self.now_s

    def elapsed_s(self, first: Any, last: Any) -> float:
        return float(last - first)

    def restart_peak(self, device: torch.device) -> None:
        self.peak = 7

    def peak_bytes(self, device: torch.device) -> int:
        return self.peak


def test_events_are_read() -> None:
    """Where a device has streams its events say when, whatever the host's clock says."""
    driver = Ticks(streams=True)
    backend = TorchDevices(("cpu",), driver)
    clock = StepClock(backend._streams, backend.names)
    with clock.layer("cpu", "slow") as note:
        driver.now_s += 40.0
        note(torch.ones(2))
    with clock.transfer(torch.ones(3), ("cpu", "cpu")):
        driver.now_s += 2.0
    driver.peak = 99
    timeline = clock.timeline()
    assert [s.end_s - s.start_s for s in timeline.spans] == pytest.approx([40.0, 2.0])
    assert timeline.makespan_s == pytest.approx(42.0)
    assert timeline.peak_bytes == {"cpu": 99} and timeline.counters["transfer_bytes"] == 12
    clock.stop()
    driver.peak = 1
    assert clock.timeline().peak_bytes == {"cpu": 99}
