"""Predict a step of a plan: forward, and backward in training, as spans, seconds and bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baechi.cost.clock import Clock
from baechi.cost.indexed_graph import FROM_HOST
from baechi.cost.machine import Machine
from baechi.records import Cluster, LayerGraph, Plan, Span, Timeline
from baechi.records.cluster import HOST
from baechi.records.timeline import Phase
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.memory.backward import BackwardLedger
from baechi.simulate.memory.event_memory import BackwardMemory, ForwardMemory, Memory
from baechi.simulate.memory.forward import ForwardLedger
from baechi.simulate.time.issue import Backward, Forward, Times, go_back, stuck
from baechi.simulate.time.launch_order import LaunchOrder, launch_order
from baechi.simulate.time.program import program
from baechi.simulate.time.transfers import Transfer, backward_transfers, forward_transfers


def simulate(plan: Plan, *, optimizer: str | None = None) -> Timeline:
    """Predict a step.

    Each device runs its layers in the plan's order, each as soon as its inputs are there. An output
    is sent once to every device that reads it, as soon as it is ready. Transfers queue on their
    channels (`baechi.cost.channel`) and overlap with computing. Backward begins when all of forward
    is over, and the host has fetched what the model returns, unless that stays on its devices. It is
    the forward in reverse: reversed orders, gradients over the reverse links.
    A layer starts when the host has issued its first kernel, and ends no sooner than the last was
    issued (`host_forward_s`, `host_backward_s`); in backward each device has an issuing host of its own.
    """
    stage = IndexedPlan.of(plan, optimizer)
    memory = Memory(stage, is_drawn=True)
    phases = _play(stage, memory)
    end_s = phases[-1].times.end_s
    spans = [span for phase in phases for span in _spans(stage, phase)]
    sizes = [[phase.transfers[number].size_bytes for number in phase.times.moves] for phase in phases]
    return Timeline(
        spans=tuple(sorted(spans, key=lambda span: span.start_s)),
        makespan_s=end_s,
        peak_bytes=dict(zip(plan.cluster.names, memory.peak_bytes, strict=True)),
        counters={
            "transfers": sum([len(sent) for sent in sizes]),
            "transfer_bytes": sum([sum(sent) for sent in sizes]),
        },
        live_bytes=memory.by_device(plan.cluster.names, end_s),
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
        """Predict a step."""
        stage = self._stage.with_plan(device_of, place)
        memory = Memory(stage)
        phases = _play(stage, memory)
        return phases[-1].times.end_s, memory.peak_bytes


@dataclass(frozen=True)
class _Played:
    """A simulated phase."""

    phase: Phase
    transfers: Sequence[Transfer]
    times: Times


def _play(stage: IndexedPlan, memory: Memory) -> list[_Played]:
    clock, order = Clock(Machine(stage.cluster)), LaunchOrder(stage.place, {}, {})
    if stage.knows_host or not _is_topological(stage):
        order = launch_order(stage.indexed, stage.has_no_turn, stage.device_of, stage.place)
        if min(order.places, default=0) < 0:
            names = zip(stage.indexed.names, order.places, strict=True)
            raise stuck("forward", [name for name, place in names if place < 0])
        stage = stage.with_plan(stage.device_of, order.places)
    transfers = forward_transfers(stage.indexed, stage.device_of, stage.place, stage.host)
    instructions = program(stage, transfers, order.awaited if stage.knows_host else {})
    forward = Forward(stage, clock, transfers, order.waited)
    times = forward.run(instructions)
    phases = [_Played("forward", [*transfers, *forward.fetched], times)]
    if stage.knows_host:
        kept = ForwardLedger(stage, memory, transfers, times).count(instructions, times.end_s)
    else:
        ForwardMemory(stage, memory, transfers).count(times)
    if not stage.graph.training:
        return phases
    back = backward_transfers(stage.indexed, transfers, stage.device_of, stage.place, stage.host)
    # the host goes on when it has what the model returns; at once if that stays
    goes_on = stage.knows_host and stage.graph.outputs_stay
    free_s = forward.clocks_s if goes_on else [times.end_s] * stage.host
    backward = Backward(stage, clock, back, free_s, times.end_s)
    go_back(stage, backward, transfers, back, instructions)
    phases.append(_Played("backward", back, backward.over()))
    if stage.knows_host:
        walker = BackwardLedger(stage, memory, kept, back, phases[1].times, max(free_s))
        go_back(stage, walker, transfers, back, instructions)
        memory.step(walker.now_s + stage.cluster.launch_s)  # its first kernel writes in place
    else:
        BackwardMemory(stage, memory, back, transfers).count(phases[1].times)
    return phases


def _is_topological(stage: IndexedPlan) -> bool:
    """Whether each layer comes after those that it reads."""
    indexed, place = stage.indexed, stage.place
    makers = enumerate(indexed.source)
    if any(
        [
            place[maker] > min(map(place.__getitem__, indexed.consumers[tensor]))
            for tensor, maker in makers
            if maker != FROM_HOST and indexed.consumers[tensor]
        ]
    ):
        return False
    return all([place[layer] < place[later] for layer, found in enumerate(indexed.after) for later in found])


def _spans(stage: IndexedPlan, played: _Played) -> Iterator[Span]:
    cluster, names, phase = stage.cluster, stage.indexed.names, played.phase
    where = cluster.names
    for layer, job in played.times.works.items():
        yield Span("compute", names[layer], where[job.device], job.start_s, job.end_s, phase)
    for number, job in played.times.moves.items():
        transfer = played.transfers[number]
        layer_name = names[transfer.producers[0] if transfer.producers else transfer.consumers[0]]
        if transfer.tensor >= 0:
            layer_name = stage.indexed.origin[transfer.tensor]
        link = _link_name(cluster, transfer)
        yield Span("transfer", layer_name, link, job.start_s, job.end_s, phase, transfer.size_bytes)


def _link_name(cluster: Cluster, transfer: Transfer) -> str:
    ends = (*cluster.names, HOST)
    return f"{ends[transfer.source]}>{ends[transfer.target]}"
