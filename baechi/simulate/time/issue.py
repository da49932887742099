"""What the host issues in a step, as jobs of the clock (`baechi.cost.clock`).

One thread issues forward, as `program` says. Backward runs the program in reverse, with one thread for
each device. A thread issues a layer after the layers that give it gradients have been issued.

    arrive   all gradients of a tensor on a device are there: their sum is sent back
    depart   later work of the receiver waits for the transfer

Where several gradients of a tensor meet on a device, each after the first is added to the sum so far. The
graph counts these additions with the consumers whose backward comes second, third and so on, on any device.

Where devices belong to ranks, each rank has a host of its own in forward, too.

A graph without host times has a host that takes no time, and streams that keep nothing waiting: a layer
waits for its device and its inputs, a transfer for its producers.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from baechi.cost.clock import COMPUTE, Clock, Job
from baechi.cost.machine import issue_s
from baechi.errors import PlanError
from baechi.records.timeline import Phase
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.time.charges import Charges
from baechi.simulate.time.program import Instruction
from baechi.simulate.time.transfers import NO_TENSOR, Transfer, downloads


def stuck(phase: Phase, layers: Sequence[str]) -> PlanError:
    """The error of a plan whose layers wait for each other."""
    return PlanError(
        f"{phase} stops for ever at {', '.join(layers)}: the plan's order is not topological, or its graph "
        "says that layers await each other (awaited_before)"
    )


@dataclass(frozen=True)
class Times:
    """When the host issued the layers and transfers of a phase, and when they ran.

    Args:
        issued_s: by layer, when its first kernel was issued, and its last.
        asked_s: by transfer, when it was issued.
        works: by layer, its job.
        moves: by transfer that travels, its job.
        end_s: when the last of it was over.
    """

    issued_s: Sequence[tuple[float, float]]
    asked_s: Sequence[float]
    works: Mapping[int, Job]
    moves: Mapping[int, Job]
    end_s: float = 0.0


class _Issuing:
    """A phase that is issued.

    Args:
        stage: the plan, in the order of launches.
        clock: takes the jobs.
        phase: forward or backward.
        transfers: what moves.

    Attributes:
        issued_s, asked_s: see `Times`.
    """

    def __init__(self, stage: IndexedPlan, clock: Clock, phase: Phase, transfers: Sequence[Transfer]) -> None:
        self._stage, self._clock, self._transfers = stage, clock, transfers
        self._launch_s, self._kernels_s = stage.launch_s, stage.host_s[phase]
        self._seconds, self._last_parts = stage.seconds_of(phase), stage.last_parts[phase]
        self.issued_s = [(0.0, 0.0)] * len(stage.place)
        self.asked_s = [0.0] * len(transfers)
        self._works: dict[int, Job] = {}
        self._moves: dict[int, Job] = {}
        self._newest: dict[int, Job] = {}  # by device, its newest work
        self._arriving: defaultdict[int, list[Job]] = defaultdict(list)  # by device: its next work waits
        self._given: defaultdict[int, list[Job]] = defaultdict(list)  # by layer, where streams do not order

    def _work(self, layer: int, begins_s: float, last_s: float) -> None:
        """Submit a layer: its device is done with what was issued before, and what arrives there is there."""
        device, work_s = self._stage.device_of[layer], self._seconds[layer]
        waits = self._arriving.pop(device, [])
        if layer in self._given:
            waits += self._given.pop(layer)
        if device in self._newest:
            waits.append(self._newest[device])
        # a slow host bounds the end: the last kernel starts after its issue
        job = Job(device, COMPUTE, work_s, last_s + self._last_parts[layer] * work_s)
        self._newest[device] = self._works[layer] = job
        self._clock.submit(job, begins_s, waits)

    def _move(self, number: int, begins_s: float) -> None:
        """Submit a transfer: its producers are over."""
        transfer = self._transfers[number]
        waits = [self._works[layer] for layer in transfer.producers]
        if self._stage.knows_host and transfer.producers:
            # behind all that was issued to the source before: so transfers of a pair keep the order of issue
            waits.append(self._newest[transfer.source])
        job = self._moves[number] = Job(transfer.source, transfer.target, transfer.size_bytes)
        self._clock.submit(job, begins_s, waits)

    def _receive(self, number: int, layer: int) -> None:
        """What is issued next on the target waits for a transfer; without streams, only the layer."""
        if self._stage.knows_host:
            self._arriving[self._transfers[number].target].append(self._moves[number])
        else:
            self._given[layer].append(self._moves[number])

    def _times(self, end_s: float) -> Times:
        self._clock.finish_all()
        ends_s = [job.end_s for jobs in (self._works, self._moves) for job in jobs.values()]
        return Times(self.issued_s, self.asked_s, self._works, self._moves, max([end_s, *ends_s]))


class Forward(_Issuing):
    """A forward, which begins when its first kernel or transfer has been issued.

    Args:
        stage: the plan, in the order of launches.
        clock: takes the jobs.
        transfers: what moves in it.
        waited: see `LaunchOrder`.

    Attributes:
        clocks_s: by device, its host's clock.
        fetched: the outputs that it fetches, numbered after the other transfers.
    """

    def __init__(
        self,
        stage: IndexedPlan,
        clock: Clock,
        transfers: Sequence[Transfer],
        waited: Mapping[int, int],
    ) -> None:
        super().__init__(stage, clock, "forward", transfers)
        self._ranks = stage.cluster.ranks or (0,) * stage.host
        self._hosts_s = [-self._launch_s] * (max(self._ranks) + 1)
        self.fetched = downloads(stage.indexed, stage.device_of, stage.host)
        self._charges = Charges(stage, transfers, waited)
        self._after: defaultdict[int, list[int]] = defaultdict(list)  # by layer, those elsewhere before it
        for transfer in transfers:
            if transfer.tensor == NO_TENSOR and transfer.source != transfer.target:
                self._after[transfer.consumers[0]] += transfer.producers

    def run(self, instructions: Sequence[Instruction]) -> Times:
        """Issue everything; then fetch what the model returns."""
        for what, number in instructions:
            rank = self._ranks[self._device_of(what, number)]
            now_s = self._hosts_s[rank]
            if what == "await":
                newest = self._newest.get(self._stage.device_of[number])
                if newest is None:
                    raise stuck("forward", [self._stage.indexed.names[number]])
                self._hosts_s[rank] = max(now_s, self._clock.finish([newest]))
                continue
            if self._stage.knows_host:
                now_s += self._charges.before((what, number))
            if what == "launch":
                first_s, now_s = issue_s(now_s, self._kernels_s[number], self._launch_s)
                self.issued_s[number] = (first_s, now_s)
                if number in self._after:
                    self._given[number] += [self._works[layer] for layer in self._after[number]]
                self._work(number, first_s, now_s)
            elif what == "depart":
                now_s = self.asked_s[number] = now_s + self._launch_s
                self._move(number, now_s)
            else:
                for reader in self._transfers[number].consumers:
                    self._receive(number, reader)
            self._hosts_s[rank] = now_s
        self._clock.finish_all()
        over_s = max(self._hosts_s)
        for place, transfer in enumerate(self.fetched):  # one after the other
            job = Job(transfer.source, transfer.target, transfer.size_bytes)
            self._moves[len(self._transfers) + place] = job
            over_s += self._stage.own.fetch_s[place] + self._launch_s
            self._clock.submit(job, over_s, [self._newest[transfer.source]])
            over_s = self._clock.finish([job])
        return self._times(0.0)

    @property
    def clocks_s(self) -> list[float]:
        """By device, its host's clock."""
        return [self._hosts_s[rank] for rank in self._ranks]

    def _device_of(self, what: str, number: int) -> int:
        """The device whose host gives an instruction."""
        if what in ("launch", "await"):
            return self._stage.device_of[number]
        transfer = self._transfers[number]
        from_host = what == "arrive" or transfer.source == self._stage.host
        return transfer.target if from_host else transfer.source


class Walker(Protocol):
    """Handles the host's instructions of a backward, in order."""

    def begin(self, number: int) -> None:
        """The gradient of an output that stays is made where that lies."""

    def launch(self, layer: int) -> None:
        """A layer's backward."""

    def send(self, number: int) -> None:
        """A gradient leaves."""

    def receive(self, number: int) -> None:
        """The host waits for a gradient."""


def go_back(
    stage: IndexedPlan,
    walker: Walker,
    forward: Sequence[Transfer],
    transfers: Sequence[Transfer],
    instructions: Sequence[Instruction],
) -> None:
    """Run the host's program in reverse, and report each instruction to a walker."""
    ways = {(transfer.tensor, transfer.source): number for number, transfer in enumerate(transfers)}
    for number, transfer in enumerate(transfers):
        if transfer.source == stage.host:  # the gradient of a loss
            walker.send(number)
            walker.receive(number)
    for number, tensor in enumerate(stage.indexed.returned):
        if stage.graph.outputs_stay and tensor.is_loss:
            walker.begin(number)
    for what, number in reversed(instructions):
        if what == "launch":
            walker.launch(number)
        if what in ("launch", "await"):
            continue
        way = ways.get((forward[number].tensor, forward[number].target))
        if way is not None and what == "arrive":
            walker.send(way)
        elif way is not None:
            walker.receive(way)


class Backward(_Issuing):
    """A backward: `go_back` tells it what the host does.

    Args:
        stage: the plan, in the order of launches.
        clock: takes the jobs.
        transfers: what moves in it.
        free_s: by device, when the host is free for it.
        begins_s: when forward is over: nothing runs before.
    """

    def __init__(
        self,
        stage: IndexedPlan,
        clock: Clock,
        transfers: Sequence[Transfer],
        free_s: Sequence[float],
        begins_s: float,
    ) -> None:
        super().__init__(stage, clock, "backward", transfers)
        self._node_s, self._begins_s = stage.own.node_s, begins_s
        before_s = self._launch_s  # of the first kernel or transfer, which backward begins with
        if any(transfer.source == stage.host for transfer in transfers):
            before_s += self._node_s
        self._clocks = [each_s - before_s for each_s in (*free_s, max(free_s))]
        self._met: set[tuple[int, int]] = set()
        self._came_s: dict[tuple[int, int], float] = {}  # by layer and device: when it got one
        self._given_s = [min(free_s) - before_s] * len(stage.place)

    def begin(self, number: int) -> None:
        """The gradient of an output that stays is made before backward begins."""

    def launch(self, layer: int) -> None:
        """A layer's backward."""
        device = self._stage.device_of[layer]
        now_s = max(self._clocks[device], self._given_s[layer])
        first_s, last_s = issue_s(now_s, self._kernels_s[layer], self._launch_s)
        for tensor in self._stage.indexed.reads[layer]:
            maker = self._stage.indexed.source[tensor]
            if layer in self._stage.indexed.graded[tensor]:  # its last kernel adds to what came before
                last_s = max(last_s, self._came_s.get((maker, device), 0.0) + self._launch_s)
        self.issued_s[layer], self._clocks[device] = (first_s, last_s), last_s
        self._work(layer, max(first_s, self._begins_s), last_s)

    def send(self, number: int) -> None:
        """A gradient leaves."""
        transfer = self._transfers[number]
        issuer = transfer.target if transfer.source == self._stage.host else transfer.source
        self._clocks[issuer] += self._node_s + self._launch_s
        self.asked_s[number] = self._clocks[issuer]
        self._move(number, max(self._clocks[issuer], self._begins_s))

    def receive(self, number: int) -> None:
        """The host waits for a gradient, and adds it to the sum so far."""
        transfer = self._transfers[number]
        (maker,) = transfer.consumers
        home, asked_s = transfer.target, self.asked_s[number]
        self._clocks[home] += self._node_s
        if (transfer.tensor, home) in self._met:
            asked_s = self._clocks[home] = max(self._clocks[home], asked_s) + self._launch_s
        self._met.add((transfer.tensor, home))
        self._came_s[maker, home] = asked_s
        self._given_s[maker] = max(self._given_s[maker], asked_s)
        self._receive(number, maker)

    def over(self) -> Times:
        """Everything was issued: when it ran."""
        return self._times(self._begins_s)
