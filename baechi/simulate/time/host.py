"""When the host has issued kernels and transfers, and what stream order makes them wait for.

One thread issues forward, as `program` says. Backward runs the program in reverse, with one thread for
each device. A thread issues a layer after the layers that give it gradients have been issued.

    arrive   all gradients of a tensor on a device are there: their sum is sent back
    depart   later work of the receiver waits for the transfer

Where several gradients of a tensor meet on a device, each after the first is added to the sum so far. The
graph counts these additions with the consumers whose backward comes second, third and so on, on any device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

from baechi.cost.machine import issue_s
from baechi.records.timeline import Phase
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.time.charges import Charges
from baechi.simulate.time.program import Instruction
from baechi.simulate.time.transfers import Transfer

_NO_LAYER = -1


@dataclass(frozen=True)
class Issued:
    """What the host issues in a phase, and when.

    Args:
        layers: by layer, when its first kernel has been issued, and its last.
        transfers: by transfer, when it has been issued.
        last_parts: by layer, the fraction of its work that remains when its last kernel has been issued.
        sequence: the transfers that travel, in the order of issue; empty if that is unknown.
        behind: by transfer, a layer that it waits for besides its producers.
        holds: by transfer, layers that wait for it besides its consumers.
    """

    layers: list[tuple[float, float]]
    transfers: list[float]
    last_parts: Sequence[float]
    sequence: list[int] = field(default_factory=list)
    behind: dict[int, int] = field(default_factory=dict)
    holds: dict[int, list[int]] = field(default_factory=dict)


def at_once(stage: IndexedPlan, start_s: float, transfers: Sequence[Transfer]) -> Issued:
    """A host that has issued everything when a phase begins, for graphs without host times.

    Args:
        stage: the plan.
        start_s: when the phase begins.
        transfers: what moves in it.
    """
    layers = len(stage.place)
    return Issued([(start_s, start_s)] * layers, [start_s] * len(transfers), [0.0] * layers)


def _issued(stage: IndexedPlan, phase: Phase, start_s: float, transfers: Sequence[Transfer]) -> Issued:
    return replace(at_once(stage, start_s, transfers), last_parts=stage.last_parts[phase])


class ForwardHost:
    """The host's part of a forward, which begins when its first kernel or transfer has been issued.

    It issues up to where the code asks for values; the engine says when they are there.

    Args:
        stage: the plan, in the order of launches.
        start_s: when it begins.
        transfers: what moves in it.
        instructions: what the host does.
        waited: see `LaunchOrder`.

    Attributes:
        issued: when everything so far has been issued; infinitely late what has not.
        now_s: the host's clock.
        awaited: the layer whose end the host waits for; None if it does not.
    """

    def __init__(
        self,
        stage: IndexedPlan,
        start_s: float,
        transfers: Sequence[Transfer],
        instructions: Sequence[Instruction],
        waited: Mapping[int, int],
    ) -> None:
        self.issued = _issued(stage, "forward", inf, transfers)
        self.now_s = start_s - stage.cluster.launch_s
        self.awaited: int | None = None
        self._launch_s, self._host_s = stage.cluster.launch_s, stage.host_s["forward"]
        self._charges = Charges(stage, transfers, waited)
        self._newest = [_NO_LAYER] * stage.host
        self._device_of = stage.device_of
        self._program = iter(instructions)
        self._follow(instructions, transfers)
        self.go_on(self.now_s)

    def _follow(self, instructions: Sequence[Instruction], transfers: Sequence[Transfer]) -> None:
        """Note what each transfer is issued behind, and what waits for it, which depends on no time."""
        newest = [_NO_LAYER] * len(self._newest)
        arriving: list[list[int]] = [[] for _ in newest]
        for what, number in instructions:
            if what == "launch":
                device = self._device_of[number]
                newest[device] = number
                for brought in arriving[device]:
                    if number not in transfers[brought].consumers:
                        self.issued.holds.setdefault(brought, []).append(number)
                arriving[device].clear()
            elif what == "arrive":
                arriving[transfers[number].target].append(number)
            elif what == "depart":
                self.issued.sequence.append(number)
                makers = transfers[number].producers
                if makers and newest[transfers[number].source] != makers[0]:
                    self.issued.behind[number] = newest[transfers[number].source]

    def go_on(self, now_s: float) -> list[Instruction]:
        """Issue until the code asks for values again, or ends.

        Args:
            now_s: when the values that it asked for are there.

        Returns:
            The instructions.
        """
        self.now_s, self.awaited = max(self.now_s, now_s), None
        done: list[Instruction] = []
        for what, number in self._program:
            if what == "await":
                self.awaited = self._newest[self._device_of[number]]
                break
            self.now_s += self._charges.before((what, number))
            if what == "launch":
                self.issued.layers[number] = issue_s(self.now_s, self._host_s[number], self._launch_s)
                self.now_s = self.issued.layers[number][1]
                self._newest[self._device_of[number]] = number
            elif what == "depart":
                self.now_s = self.issued.transfers[number] = self.now_s + self._launch_s
            done.append((what, number))
        return done


def issue_backward(
    stage: IndexedPlan,
    start_s: float,
    forward: Sequence[Transfer],
    transfers: Sequence[Transfer],
    instructions: Sequence[Instruction],
) -> Issued:
    """The host's part of a backward, which begins when its first kernel or transfer has been issued.

    Args:
        stage: the plan, in the order of launches.
        start_s: when the host is free for it.
        forward: what moved in the forward.
        transfers: what moves in backward.
        instructions: what the host did in forward.
    """
    walk = _Backward(stage, start_s, transfers)
    go_back(stage, walk, forward, transfers, instructions)
    return walk.issued


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
    """Run the host's program in reverse, and report each instruction to a walker.

    Args:
        stage: the plan, in the order of launches.
        walker: is told of each instruction.
        forward: what moved in the forward.
        transfers: what moves in backward.
        instructions: what the host did in forward.
    """
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


class _Backward:
    """Computes issue times along one backward.

    Args:
        stage: the plan, in the order of launches.
        start_s: when the host is free for it.
        transfers: what moves in it.
    """

    def __init__(self, stage: IndexedPlan, start_s: float, transfers: Sequence[Transfer]) -> None:
        self.issued = _issued(stage, "backward", start_s, transfers)
        self._stage = stage
        self._transfers = transfers
        self._launch_s, self._node_s = stage.cluster.launch_s, stage.own.node_s
        before_s = self._launch_s  # of the first kernel or transfer, which backward begins with
        if any(transfer.source == stage.host for transfer in transfers):
            before_s += self._node_s
        self._clocks = [start_s - before_s] * (stage.host + 1)
        self._newest = [_NO_LAYER] * stage.host
        self._waited: list[list[int]] = [[] for _ in range(stage.host)]
        self._met: set[tuple[int, int]] = set()
        self._came_s: dict[tuple[int, int], float] = {}  # by layer and device: when it got one
        self._given_s = [start_s - before_s] * len(stage.place)

    def begin(self, number: int) -> None:
        """The gradient of an output that stays is made before backward begins."""

    def launch(self, layer: int) -> None:
        """A layer's backward."""
        device = self._stage.device_of[layer]
        kernels_s = self._stage.host_s["backward"][layer]
        now_s = max(self._clocks[device], self._given_s[layer])
        first_s, last_s = issue_s(now_s, kernels_s, self._launch_s)
        for tensor in self._stage.indexed.reads[layer]:
            maker = self._stage.indexed.source[tensor]
            if layer in self._stage.indexed.graded[tensor]:  # its last kernel adds to what came before
                last_s = max(last_s, self._came_s.get((maker, device), 0.0) + self._launch_s)
        self.issued.layers[layer] = first_s, last_s
        self._clocks[device] = last_s
        self._newest[device] = layer
        for number in self._waited[device]:
            self.issued.holds.setdefault(number, []).append(layer)
        self._waited[device] = []

    def send(self, number: int) -> None:
        """A gradient leaves."""
        transfer = self._transfers[number]
        issuer = transfer.target if transfer.source == self._stage.host else transfer.source
        self._clocks[issuer] += self._node_s + self._launch_s
        self.issued.transfers[number] = self._clocks[issuer]
        self.issued.sequence.append(number)
        if issuer == transfer.source and self._newest[issuer] not in transfer.producers:
            self.issued.behind[number] = self._newest[issuer]

    def receive(self, number: int) -> None:
        """The host waits for a gradient, and adds it to the sum so far."""
        transfer = self._transfers[number]
        (maker,) = transfer.consumers
        home, asked_s = transfer.target, self.issued.transfers[number]
        self._clocks[home] += self._node_s
        if (transfer.tensor, home) in self._met:
            asked_s = self._clocks[home] = max(self._clocks[home], asked_s) + self._launch_s
        self._met.add((transfer.tensor, home))
        self._came_s[maker, home] = asked_s
        self._given_s[maker] = max(self._given_s[maker], asked_s)
        self._waited[home].append(number)
