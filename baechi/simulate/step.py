"""The predicted step of a plan: forward, then backward in training, as spans, seconds and bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from baechi.cost.machine import Machine
from baechi.records import Cluster, Plan, Span, Timeline
from baechi.records.cluster import HOST
from baechi.records.timeline import Phase
from baechi.simulate.engine import Engine
from baechi.simulate.host import issue
from baechi.simulate.memory import BackwardMemory, ForwardMemory, Memory
from baechi.simulate.parcels import Parcel, backward_parcels, forward_parcels
from baechi.simulate.stage import Stage
from baechi.simulate.watcher import Watcher


def simulate(plan: Plan, *, optimizer: str | None = None) -> Timeline:
    """Predict a step.

    Each device runs its layers in the plan's order, each as soon as its inputs are there. An output
    is sent once to every device that reads it as soon as it is ready; transfers queue on their
    channels (`baechi.cost.channel`) and overlap with computing. Backward begins when all forward is
    over, and is the forward turned around: reversed orders, gradients over the reverse links.
    A layer starts when the host has issued its first kernel, and ends no sooner than the last was
    issued (`host_forward_s`, `host_backward_s`); in backward each device has an issuing host of its own.

    Args:
        plan: the plan.
        optimizer: name of the optimizer whose state counts in training;
            `plan.graph.graph["optimizer"]` unless given.

    Returns:
        Compute spans of all layers, transfer spans (uploads come from `"host"`), peaks of all
        devices, and the counters `"transfers"` and `"transfer_bytes"` (gradients and uploads
        included).

    Raises:
        RecordError: times are given by kind of device, and not for the one that a layer is on.
        ValueError: the optimizer is unknown.
    """
    stage = Stage.of(plan, optimizer)
    memory = Memory(stage)
    machine = Machine(plan.cluster)
    forward = forward_parcels(stage.indexed, stage.device_of, stage.place, stage.host)
    phases = [_phase(stage, "forward", 0.0, forward, machine, ForwardMemory(stage, memory, forward))]
    if plan.graph.training:
        backward = backward_parcels(forward, stage.place, stage.host)
        watcher = BackwardMemory(stage, memory, forward)
        phases.append(_phase(stage, "backward", phases[0].end_s, backward, machine, watcher))
    spans = [span for phase in phases for span in phase.spans]
    return Timeline(
        spans=tuple(sorted(spans, key=lambda span: span.start_s)),
        makespan_s=phases[-1].end_s,
        peak_bytes=dict(zip(plan.cluster.names, memory.peak_bytes, strict=True)),
        counters={
            "transfers": sum([len(phase.sent_bytes) for phase in phases]),
            "transfer_bytes": sum([sum(phase.sent_bytes) for phase in phases]),
        },
    )


@dataclass(frozen=True)
class _Played:
    """What happened in a phase: its spans, the bytes of its transfers, its end."""

    spans: list[Span]
    sent_bytes: list[int]
    end_s: float


def _phase(
    stage: Stage,
    phase: Phase,
    start_s: float,
    parcels: Sequence[Parcel],
    machine: Machine,
    watcher: Watcher,
) -> _Played:
    cluster, names = stage.plan.cluster, stage.indexed.names
    devices = [cluster.devices[device] for device in stage.device_of]
    seconds = [
        stage.plan.graph.seconds(name, f"{phase}_s", device.kind, device.speed)
        for name, device in zip(names, devices, strict=True)
    ]
    queues = stage.queues if phase == "forward" else [queue[::-1] for queue in stage.queues]
    issued = issue(stage, phase, start_s, parcels)
    engine = Engine(seconds, issued, queues, parcels, machine, watcher)
    end_s = engine.run(start_s)
    if engine.stuck:
        stuck = ", ".join([names[layer] for layer in engine.stuck])
        raise RuntimeError(f"{phase} stops for ever at {stuck}: the plan's order is not topological")
    spans = [
        Span("compute", names[layer], cluster.names[stage.device_of[layer]], begin_s, over_s, phase)
        for layer, begin_s, over_s in engine.ran
    ]
    for number, begin_s, over_s in engine.moved:
        layer, where = stage.indexed.origin[parcels[number].tensor], _link_name(cluster, parcels[number])
        spans.append(Span("transfer", layer, where, begin_s, over_s, phase))
    return _Played(spans, [parcels[number].size_bytes for number, _, _ in engine.moved], end_s)


def _link_name(cluster: Cluster, parcel: Parcel) -> str:
    ends = (*cluster.names, HOST)
    return f"{ends[parcel.source]}>{ends[parcel.target]}"
