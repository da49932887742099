"""How full each device is, where the host's program is known: bytes are taken when the host issues.

The host runs ahead of the devices, and an allocator hands out memory as the host asks for it:

- an output is let go when the host has issued all who read it, on whatever device, and no variable
  holds it (`held_until`); a view holds what it views;
- what autograd keeps: a layer's own until its backward was issued, what readers keep of an output
  (`lent_bytes`) until theirs was; on devices where nobody keeps it, copy or original, it goes at once;
- a copy is let go with what it is a copy of, that of an input at the end of forward;
- a gradient is there from the backward of the first who makes it to that of its maker, on each device;
- memory that another stream used (what was sent, what arrived) comes back when the host's clock is
  past the newest task of that stream, or when the device would be full; in backward the clock of
  that device's thread which has come least far (one without work stays where it began), since until
  then nobody knows what is still to be issued;
- gradients of weights are there always, as they are for who adds to them over several steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from baechi.cost.indexed import FROM_HOST
from baechi.simulate.engine import Engine
from baechi.simulate.host import Issued
from baechi.simulate.memory import Memory
from baechi.simulate.parcels import Parcel
from baechi.simulate.program import Instruction
from baechi.simulate.stage import Stage


@dataclass
class Kept:
    """What forward leaves for backward.

    Args:
        own_bytes: by layer, until its backward.
        lent: by layer, the readers on its device for whom its output is kept.
        copies: by tensor and device, the readers there for whom the copy is kept.
    """

    own_bytes: list[int]
    lent: dict[int, set[int]] = field(default_factory=dict)
    copies: dict[tuple[int, int], set[int]] = field(default_factory=dict)


class ForwardLedger:
    """Counts a forward.

    Args:
        stage: the plan, in the order of launches.
        memory: where to count.
        parcels: what moves.
        issued: when the host issued what.
        engine: that ran the forward.
    """

    def __init__(
        self, stage: Stage, memory: Memory, parcels: Sequence[Parcel], issued: Issued, engine: Engine
    ) -> None:
        indexed, layers = stage.indexed, range(len(stage.place))
        self.kept = Kept([stage.footprints[n].saved_bytes - stage.lent_bytes[n] for n in layers])
        self._stage = stage
        self._memory = memory
        self._parcels = parcels
        self._issued = issued
        self._ended_s = {layer: end_s for layer, _, end_s in engine.ran}
        self._arrived_s = {number: end_s for number, _, end_s in engine.moved}
        self._newest_s = [0.0] * stage.host
        self._newest_sent_s: dict[tuple[int, int], float] = {}
        self._ways: list[set[tuple[int, int]]] = [set() for _ in layers]
        self._copied: dict[int, list[int]] = {}
        self._over = not stage.graph.training
        self._dropped = [False for _ in layers]
        self._users = [0 for _ in layers]
        for tensor, maker in enumerate(indexed.source):
            if maker != FROM_HOST:
                self._users[maker] += len(indexed.consumers[tensor])
        self._named = {maker for makers in indexed.lets_go.values() for maker in makers}
        for maker in self._named:
            self._users[maker] += 2  # by its variable, and by itself: the variable may go before it runs

    def count(self, instructions: Iterable[Instruction], over_s: float) -> None:
        """Go through the host's program.

        Args:
            instructions: the program.
            over_s: when the host has all that the model returns.
        """
        for what, number in instructions:
            if what == "launch":
                self._launch(number)
            elif what == "depart":
                self._depart(number)
        if self._stage.graph.training:
            self._finish(over_s)

    def _depart(self, number: int) -> None:
        parcel, now_s = self._parcels[number], self._issued.parcels[number] - self._stage.cluster.launch_s
        self._memory.issue(parcel.target, parcel.size_bytes, now_s)
        pair = parcel.source, parcel.target
        self._newest_sent_s[pair] = self._arrived_s[number]
        for maker in parcel.givers:
            self._ways[maker].add(pair)
        self._copied.setdefault(parcel.givers[0] if parcel.givers else FROM_HOST, []).append(number)

    def _launch(self, layer: int) -> None:
        stage, memory = self._stage, self._memory
        device, footprint = stage.device_of[layer], stage.footprints[layer]
        first_s, now_s = self._issued.layers[layer]
        temp_bytes = stage.temp_bytes["forward"][layer]
        new_bytes = footprint.saved_bytes + footprint.output_bytes + temp_bytes
        memory.issue(device, new_bytes, first_s - stage.cluster.launch_s)
        memory.free(device, temp_bytes)
        self._newest_s[device] = self._ended_s[layer]
        if not stage.indexed.borrows[layer]:
            self._let_inputs_go(layer, now_s)
        for maker in stage.indexed.lets_go.get(layer, ()):
            self._let_go(maker, now_s)
        if layer in self._named:
            self._let_go(layer, now_s)

    def _let_inputs_go(self, layer: int, now_s: float) -> None:
        for tensor in self._stage.indexed.reads[layer]:
            maker = self._stage.indexed.source[tensor]
            if maker != FROM_HOST:
                self._let_go(maker, now_s)

    def _let_go(self, maker: int, now_s: float) -> None:
        self._users[maker] -= 1
        if not self._users[maker]:
            if self._stage.indexed.borrows[maker]:
                self._let_inputs_go(maker, now_s)
            self._drop(maker, now_s)

    def _drop(self, maker: int, now_s: float) -> None:
        """Nobody holds an output any more, but autograd may."""
        stage, memory, device = self._stage, self._memory, self._stage.device_of[maker]
        self._dropped[maker] = True
        left_s = max([self._newest_sent_s[pair] for pair in self._ways[maker]], default=0.0)
        memory.drop(device, stage.footprints[maker].output_bytes, left_s, now_s)
        readers = [
            reader for tensor in stage.indexed.makes[maker] for reader in stage.indexed.keepers[tensor]
        ]
        keepers = {reader for reader in readers if stage.device_of[reader] == device}
        if keepers:
            self.kept.lent[maker] = keepers
        else:
            memory.drop(device, stage.lent_bytes[maker], left_s, now_s)
        copies, base = self._copied.pop(maker, []), self._base(maker)
        if base is not None:  # it may have handed on the very tensor
            self._copied.setdefault(base, []).extend(copies)
            return
        if keepers and not self._over:  # autograd holds the very tensor, which the step knows copies of
            self._copied.setdefault(FROM_HOST, []).extend(copies)
            return
        for number in copies:
            self._drop_copy(number, now_s)

    def _base(self, maker: int) -> int | None:
        """What a layer's output is a view of, if somebody still holds that."""
        if not self._stage.indexed.borrows[maker]:
            return None
        bases = [self._stage.indexed.source[tensor] for tensor in self._stage.indexed.reads[maker]]
        return next((base for base in bases if base != FROM_HOST and not self._dropped[base]), None)

    def _drop_copy(self, number: int, now_s: float) -> None:
        parcel = self._parcels[number]
        keepers = self._stage.indexed.keepers[parcel.tensor]
        keeping = {reader for reader in parcel.takers if reader in keepers}
        if keeping and self._stage.graph.training:
            self.kept.copies[parcel.tensor, parcel.target] = keeping
        else:
            self._memory.drop(parcel.target, parcel.size_bytes, self._newest_s[parcel.target], now_s)

    def _finish(self, now_s: float) -> None:
        """The forward returns: its variables go, and what it returns is on the host."""
        self._over = True
        for maker in reversed(range(len(self._dropped))):
            if not self._dropped[maker]:
                self._drop(maker, now_s)
        for number in self._copied.pop(FROM_HOST, ()):
            self._drop_copy(number, now_s)
        for maker, size_bytes, _ in self._stage.indexed.returned:
            held_bytes = min(self._stage.held_bytes[maker], size_bytes, self.kept.own_bytes[maker])
            self.kept.own_bytes[maker] -= held_bytes
            self._memory.drop(self._stage.device_of[maker], held_bytes, 0.0, now_s)


class BackwardLedger:
    """Counts a backward.

    Args:
        stage: the plan, in the order of launches.
        memory: where to count, as the forward left it.
        kept: what the forward left.
        parcels: what moves.
        issued: when the host issued what.
        engine: that ran the backward.
        start_s: when it began.
    """

    def __init__(
        self,
        stage: Stage,
        memory: Memory,
        kept: Kept,
        parcels: Sequence[Parcel],
        issued: Issued,
        engine: Engine,
        start_s: float,
    ) -> None:
        self._stage = stage
        self._memory = memory
        self._kept = kept
        self._parcels = parcels
        self._issued = issued
        self._ended_s = {layer: end_s for layer, _, end_s in engine.ran}
        self._arrived_s = {number: end_s for number, _, end_s in engine.moved}
        self._newest_s = [0.0] * stage.host
        self._clocks = [start_s] * stage.host
        self._received: set[tuple[int, int]] = set()  # gradients that came from elsewhere
        self._there: set[tuple[int, int]] = set()  # gradients, by tensor and device

    def launch(self, layer: int) -> None:
        """A layer's backward."""
        stage, memory = self._stage, self._memory
        indexed, device = stage.indexed, stage.device_of[layer]
        now_s = min(self._clocks)
        works = stage.host_s["backward"][layer] > 0
        temp_bytes = stage.temp_bytes["backward"][layer] if works else 0
        memory.issue(device, temp_bytes, now_s)
        memory.free(device, temp_bytes)
        self._newest_s[device] = self._ended_s[layer]
        for tensor in indexed.reads[layer]:
            if layer in indexed.graded[tensor] and indexed.source[tensor] != FROM_HOST:
                if (tensor, device) not in self._there:
                    self._there.add((tensor, device))
                    memory.issue(device, indexed.size_bytes[tensor], now_s)
            self._let_go(layer, tensor, now_s)
        memory.drop(device, self._kept.own_bytes[layer], 0.0, now_s)
        for tensor in indexed.makes[layer]:
            if (tensor, device) in self._there:
                self._there.discard((tensor, device))
                until_s = self._newest_s[device] if (tensor, device) in self._received else 0.0
                memory.drop(device, indexed.size_bytes[tensor], until_s, now_s)
        self._clocks[device] = max(self._clocks[device], self._issued.layers[layer][1])

    def send(self, number: int) -> None:
        """A gradient leaves."""
        parcel = self._parcels[number]
        self._memory.issue(parcel.target, parcel.size_bytes, min(self._clocks))
        issuer = parcel.target if parcel.source == self._stage.host else parcel.source
        self._clocks[issuer] = max(self._clocks[issuer], self._issued.parcels[number])

    def receive(self, number: int) -> None:
        """A gradient has come: who sent it lets it go, and here it is added to what is there."""
        parcel, memory = self._parcels[number], self._memory
        home, there, size_bytes = parcel.target, parcel.source, parcel.size_bytes
        if there != self._stage.host:
            self._there.discard((parcel.tensor, there))
            memory.drop(there, size_bytes, self._arrived_s[number], min(self._clocks))
        if parcel.tensor < 0 or (parcel.tensor, home) in self._there:
            memory.drop(home, size_bytes, self._arrived_s[number], min(self._clocks))
        else:
            self._received.add((parcel.tensor, home))
        self._there.add((parcel.tensor, home))

    def _let_go(self, layer: int, tensor: int, now_s: float) -> None:
        """What was kept for a layer goes with the last for whom it was."""
        indexed, kept, device = self._stage.indexed, self._kept, self._stage.device_of[layer]
        maker = indexed.source[tensor]
        lent = kept.lent.get(maker)
        if lent and layer in lent:
            lent.discard(layer)
            if not lent:
                self._memory.drop(device, self._stage.lent_bytes[maker], 0.0, now_s)
        copies = kept.copies.get((tensor, device))
        if copies and layer in copies:
            copies.discard(layer)
            if not copies:
                size_bytes = indexed.size_bytes[tensor]
                self._memory.drop(device, size_bytes, self._newest_s[device], now_s)
