"""Predict a step of a plan: forward, and backward in training, as spans, seconds and bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baechi.cost.machine import Machine
from baechi.errors import PlanError
from baechi.records import Cluster, LayerGraph, Plan, Span, Timeline
from baechi.records.cluster import HOST
from baechi.records.timeline import Phase
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.memory.backward import BackwardLedger
from baechi.simulate.memory.forward import ForwardLedger
from baechi.simulate.memory.recorder import Recorder
from baechi.simulate.memory.watching import BackwardMemory, ForwardMemory, Memory
from baechi.simulate.time.engine import Engine
from baechi.simulate.time.host import ForwardHost, Issued, at_once, go_back, issue_backward
from baechi.simulate.time.launch_order import launch_order
from baechi.simulate.time.program import program
from baechi.simulate.time.transfers import Transfer, backward_transfers, downloads, forward_transfers
from baechi.simulate.time.watcher import NullWatcher, Watcher


def simulate(plan: Plan, *, optimizer: str | None = None) -> Timeline:
    """Predict a step.

    Each device runs its layers in the plan's order, each as soon as its inputs are there. An output
    is sent once to every device that reads it, as soon as it is ready. Transfers queue on their
    channels (`baechi.cost.channel`) and overlap with computing. Backward begins when all of forward
    is over, and the host has fetched what the model returns, unless that stays on its devices. It is
    the forward in reverse: reversed orders, gradients over the reverse links.
    A layer starts when the host has issued its first kernel, and ends no sooner than the last was
    issued (`host_forward_s`, `host_backward_s`); in backward each device has an issuing host of its own.

    Args:
        plan: the plan.
        optimizer: name of the optimizer whose state counts in training;
            `plan.graph.graph["optimizer"]` unless given.

    Returns:
        Compute spans of all layers, transfer spans (uploads come from `"host"`), peaks of all
        devices and how full they are over time, and the counters `"transfers"` and
        `"transfer_bytes"` (gradients and uploads included).

    Raises:
        RecordError: times are given by kind of device, and not for the one that a layer is on.
        ValueError: the optimizer is unknown.
    """
    stage = IndexedPlan.of(plan, optimizer)
    memory = Memory(stage)
    recorder = Recorder(memory)
    phases = _play(stage, memory, recorder)
    spans = [span for phase in phases for span in _spans(stage, phase)]
    sizes = [[phase.transfers[number].size_bytes for number, _, _ in phase.engine.moved] for phase in phases]
    return Timeline(
        spans=tuple(sorted(spans, key=lambda span: span.start_s)),
        makespan_s=phases[-1].end_s,
        peak_bytes=dict(zip(plan.cluster.names, memory.peak_bytes, strict=True)),
        counters={
            "transfers": sum([len(sent) for sent in sizes]),
            "transfer_bytes": sum([sum(sent) for sent in sizes]),
        },
        live_bytes=recorder.by_device(plan.cluster.names, phases[-1].end_s),
    )


class Rehearsal:
    """A simulator for many plans of one graph on one cluster: what they share is computed once.

    Args:
        graph: the layer graph; its optimizer counts.
        cluster: the devices.
    """

    def __init__(self, graph: LayerGraph, cluster: Cluster) -> None:
        self._stage = IndexedPlan.empty(graph, cluster)

    def __call__(self, device_of: Sequence[int], place: Sequence[int]) -> tuple[float, list[int]]:
        """Predict a step.

        Args:
            device_of: by layer (in topological order), its device.
            place: by layer, its place in the order.

        Returns:
            The step's seconds, and the peak of each device in bytes.
        """
        stage = self._stage.with_plan(device_of, place)
        memory = Memory(stage)
        phases = _play(stage, memory)
        return phases[-1].end_s, memory.peak_bytes


@dataclass(frozen=True)
class _Played:
    """A simulated phase."""

    phase: Phase
    transfers: Sequence[Transfer]
    engine: Engine
    end_s: float


def _play(stage: IndexedPlan, memory: Memory, recorder: Recorder | None = None) -> list[_Played]:
    if stage.knows_host:
        return _play_program(stage, memory)
    machine = Machine(stage.cluster)
    transfers = forward_transfers(stage.indexed, stage.device_of, stage.place, stage.host)
    watcher: Watcher = ForwardMemory(stage, memory, transfers)
    watcher = recorder.over(watcher) if recorder else watcher
    issued = at_once(stage, 0.0, transfers)
    phases = [_forward(stage, transfers, issued, (machine, watcher), recorder)]
    if stage.graph.training:
        watcher = BackwardMemory(stage, memory, transfers)
        watcher = recorder.over(watcher) if recorder else watcher
        start_s = phases[0].end_s
        transfers = backward_transfers(stage.indexed, transfers, stage.device_of, stage.place, stage.host)
        issued = at_once(stage, start_s, transfers)
        phases.append(_backward(stage, transfers, issued, (machine, watcher), start_s, recorder))
    return phases


def _play_program(stage: IndexedPlan, memory: Memory) -> list[_Played]:
    """Simulate a step of a graph with host times, so that the host's program is known."""
    around = Machine(stage.cluster), NullWatcher()
    order = launch_order(stage.indexed, stage.has_no_turn, stage.device_of, stage.place)
    stage = stage.with_plan(stage.device_of, order.places)
    transfers = forward_transfers(stage.indexed, stage.device_of, stage.place, stage.host)
    instructions = program(stage, transfers, order.awaited)
    host = ForwardHost(stage, 0.0, transfers, instructions, order.waited)
    phases = [_forward(stage, transfers, host.issued, around, host=host)]
    ledger = ForwardLedger(stage, memory, transfers, host.issued, phases[0].engine)
    ledger.count(instructions, phases[0].end_s)
    if stage.graph.training:
        back = backward_transfers(stage.indexed, transfers, stage.device_of, stage.place, stage.host)
        # the host goes on when it has what the model returns; at once if that stays
        on_s = host.now_s if stage.graph.outputs_stay else phases[0].end_s
        issued = issue_backward(stage, on_s, transfers, back, instructions)
        phases.append(_backward(stage, back, issued, around, phases[0].end_s))
        walker = BackwardLedger(stage, memory, ledger.kept, back, issued, phases[1].engine, on_s)
        go_back(stage, walker, transfers, back, instructions)
        memory.step(walker.now_s + stage.cluster.launch_s)  # its first kernel writes in place
    return phases


def _forward(
    stage: IndexedPlan,
    transfers: list[Transfer],
    issued: Issued,
    around: tuple[Machine, Watcher],
    recorder: Recorder | None = None,
    host: ForwardHost | None = None,
) -> _Played:
    engine = Engine(stage.seconds_of("forward"), issued, stage.queues, transfers, *around, host)
    end_s = _run(stage, "forward", engine, 0.0, recorder)
    over_s = host.now_s if host else 0.0
    returned = downloads(stage.indexed, stage.device_of, stage.host)
    end_s = max(end_s, _download(stage, engine, returned, around[0], over_s))
    return _Played("forward", [*transfers, *returned], engine, end_s)


def _backward(
    stage: IndexedPlan,
    transfers: list[Transfer],
    issued: Issued,
    around: tuple[Machine, Watcher],
    start_s: float,
    recorder: Recorder | None = None,
) -> _Played:
    queues = [queue[::-1] for queue in stage.queues]
    engine = Engine(stage.seconds_of("backward"), issued, queues, transfers, *around)
    return _Played("backward", transfers, engine, _run(stage, "backward", engine, start_s, recorder))


def _run(
    stage: IndexedPlan, phase: Phase, engine: Engine, start_s: float, recorder: Recorder | None
) -> float:
    end_s = engine.run(start_s)
    if engine.stuck:
        stuck = ", ".join([stage.indexed.names[layer] for layer in engine.stuck])
        raise PlanError(
            f"{phase} stops for ever at {stuck}: the plan's order is not topological, or its graph says that "
            "layers await each other (awaited_before)"
        )
    if recorder:
        recorder.phase_over(engine)
    return end_s


def _download(
    stage: IndexedPlan, engine: Engine, returned: Sequence[Transfer], machine: Machine, now_s: float
) -> float:
    """Fetch outputs to the host, one after the other, each when its device has finished."""
    ended_s = {layer: end_s for layer, _, end_s in engine.ran}
    launch_s = stage.cluster.launch_s if stage.knows_host else 0.0
    for number, transfer in enumerate(returned, start=len(engine.transfers)):
        now_s += stage.own.fetch_s[number - len(engine.transfers)] if stage.knows_host else 0.0
        newest = stage.queues[transfer.source][-1]
        start_s, end_s = machine.send(
            transfer.source, transfer.target, max(now_s + launch_s, ended_s[newest]), transfer.size_bytes
        )
        engine.moved.append((number, start_s, end_s))
        now_s = end_s
    return now_s


def _spans(stage: IndexedPlan, played: _Played) -> Iterator[Span]:
    cluster, names, phase = stage.cluster, stage.indexed.names, played.phase
    where = cluster.names
    for layer, begin_s, over_s in played.engine.ran:
        yield Span("compute", names[layer], where[stage.device_of[layer]], begin_s, over_s, phase)
    for number, begin_s, over_s in played.engine.moved:
        transfer = played.transfers[number]
        layer_name = names[transfer.producers[0] if transfer.producers else transfer.consumers[0]]
        if transfer.tensor >= 0:
            layer_name = stage.indexed.origin[transfer.tensor]
        link = _link_name(cluster, transfer)
        yield Span("transfer", layer_name, link, begin_s, over_s, phase, transfer.size_bytes)


def _link_name(cluster: Cluster, transfer: Transfer) -> str:
    ends = (*cluster.names, HOST)
    return f"{ends[transfer.source]}>{ends[transfer.target]}"
