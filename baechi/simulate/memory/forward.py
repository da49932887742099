"""Bytes on each device in forward, if the host's program is known: counted when the host issues.

The host runs ahead of the devices, and the allocator hands out memory when the host asks for it:

- An output is released when the host has issued all its consumers, on every device, and no variable
  holds it (`held_until`). A view holds its base.
- What autograd saves for a layer's own backward stays until that backward is issued. What it saves of
  an output for consumers (`lent_bytes`) stays until theirs is. A device without such a consumer frees
  its copy or original at once.
- A copy is released with its original; the copy of a model input, at the end of forward.
- Memory that another stream used (what was sent, what arrived) is reusable when the host's clock is
  past the newest task of that stream, or when the device would otherwise be full.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from baechi.cost.indexed_graph import FROM_HOST
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.memory.counter import Counter
from baechi.simulate.memory.event_memory import OVER
from baechi.simulate.time.issue import Times
from baechi.simulate.time.program import Instruction
from baechi.simulate.time.transfers import Transfer


@dataclass
class Kept:
    """What forward keeps for backward.

    Args:
        own_bytes: by layer, bytes kept until its backward.
        lent: by layer, the consumers on its device for which its output is kept.
        copies: by tensor and device, the consumers there for which the copy is kept.
        ways: by layer, the pairs of devices (source, target) that its output travelled between.
        newest_sent: by pair, when the newest transfer ends.
    """

    own_bytes: list[int]
    lent: dict[int, set[int]] = field(default_factory=dict)
    copies: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    ways: dict[int, set[tuple[int, int]]] = field(default_factory=dict)
    newest_sent: dict[tuple[int, int], float] = field(default_factory=dict)

    def sent(self, layer: int) -> float:
        """When the streams that sent a layer's output have finished all work issued to them so far."""
        return max([self.newest_sent[pair] for pair in self.ways.get(layer, ())], default=OVER)


class ForwardLedger:
    """Counts the bytes of a forward.

    Args:
        stage: the plan, in the order of launches.
        memory: where to count.
        transfers: the transfers of the forward.
        times: when the host issued them, and when they ran.
    """

    def __init__(
        self,
        stage: IndexedPlan,
        memory: Counter,
        transfers: Sequence[Transfer],
        times: Times,
    ) -> None:
        indexed, layers = stage.indexed, range(len(stage.place))
        self.kept = Kept([stage.footprints[n].saved_bytes - stage.lent_bytes[n] for n in layers])
        self._stage = stage
        self._memory = memory
        self._transfers = transfers
        self._times = times
        self._newest_s = [0.0] * stage.host
        self._copied: dict[int, list[int]] = {}
        self._over = False
        self._calls: list[int] = []  # not yet returned: where the code is, then layers woken by its launch
        self._passed = 0  # the code has gone past all layers below this index
        self._dropped = [False for _ in layers]
        self._users = [0 for _ in layers]
        for tensor, maker in enumerate(indexed.source):
            if maker != FROM_HOST and not indexed.held[tensor]:
                self._users[maker] += len(indexed.consumers[tensor])
        self._named = {maker for makers in indexed.releases.values() for maker in makers}
        parts = zip(indexed.costs, stage.footprints, strict=True)
        self._stays = [costs.held_bytes > 0 and not part.output_bytes for costs, part in parts]
        for layer in layers:
            if indexed.is_view[layer]:
                bases = [indexed.source[tensor] for tensor in indexed.reads[layer]]
                of_weights = not bases
                self._stays[layer] |= of_weights or any([self._stays[b] for b in bases if b != FROM_HOST])
        for maker in self._named:
            self._users[maker] += 2  # its variable, and the layer itself: the variable may go before it runs

    def count(self, instructions: Sequence[Instruction], over_s: float) -> Kept:
        """Count the host's program, instruction by instruction."""
        launches = (number for what, number in instructions if what == "launch")
        end = len(self._dropped)
        following = next(launches, end)
        for what, number in instructions:
            if what == "launch":
                self.come_to(number)
                self.launch(number)
                following = next(launches, end)
            elif what == "depart":
                if not self._leaves_at_once(number):
                    self.come_to(following)
                self.depart(number)
        self.come_to(end)
        if self._stage.graph.training:
            self.finish(over_s)
        return self.kept

    def _leaves_at_once(self, number: int) -> bool:
        """Whether the layer's own call sends its output, while the caller still holds its arguments."""
        transfer = self._transfers[number]
        return transfer.producers == tuple(self._calls[-1:]) and self._stage.indexed.ahead[transfer.tensor]

    def depart(self, number: int) -> None:
        """Count the copy of a tensor that leaves."""
        transfer, now_s = (
            self._transfers[number],
            self._times.asked_s[number] - self._stage.cluster.launch_s,
        )
        self._memory.issue(transfer.target, transfer.copy_bytes, now_s)
        pair = transfer.source, transfer.target
        self.kept.newest_sent[pair] = self._times.moves[number].end_s
        for maker in transfer.producers:
            self._note_way(maker, pair)
        self._copied.setdefault(transfer.producers[0] if transfer.producers else FROM_HOST, []).append(number)

    def _note_way(self, maker: int, pair: tuple[int, int]) -> None:
        """Note that a layer's output is sent, and with it the memory that it is a view of."""
        indexed, owners = self._stage.indexed, [maker]
        while owners:
            owner = owners.pop()
            ways = self.kept.ways.setdefault(owner, set())
            if pair not in ways:
                ways.add(pair)
                bases = [indexed.source[tensor] for tensor in indexed.reads[owner] if indexed.is_view[owner]]
                owners += [base for base in bases if base != FROM_HOST]

    def launch(self, layer: int) -> None:
        """Count what a layer makes."""
        stage, memory = self._stage, self._memory
        device, footprint = stage.device_of[layer], stage.footprints[layer]
        temp_bytes = stage.temp_bytes[layer]
        new_bytes = footprint.saved_bytes + footprint.output_bytes + temp_bytes
        memory.issue(device, new_bytes, self._times.issued_s[layer][0] - stage.cluster.launch_s)
        memory.free(device, temp_bytes)
        self._newest_s[device] = self._times.works[layer].end_s
        self._calls.append(layer)

    def come_to(self, layer: int) -> None:
        """End the calls that return before a layer launches: all of them, if the code reaches the layer now.
        If another launch woke it, the code is still in that launch's call: only calls after that return.
        """
        code_goes_on = layer >= self._passed
        while len(self._calls) > (not code_goes_on):
            self._give_back(self._calls.pop())
        if code_goes_on and layer < len(self._dropped):
            self._go_past(layer, self._times.issued_s[layer][0])

    def _give_back(self, layer: int) -> None:
        """End a layer's call: it releases its inputs, and variables that end there are gone."""
        indexed, (_, now_s) = self._stage.indexed, self._times.issued_s[layer]
        if not indexed.is_view[layer]:
            self._let_inputs_go(layer, now_s)
        self._go_past(layer + 1, now_s)
        if layer in self._named:
            self._released_by(layer, now_s)

    def _go_past(self, end: int, now_s: float) -> None:
        """Release variables that end before `end`. The code passes a layer that still waits, too."""
        for layer in range(self._passed, end):
            for maker in self._stage.indexed.releases.get(layer, ()):
                self._released_by(maker, now_s)
        self._passed = max(self._passed, end)

    def _let_inputs_go(self, layer: int, now_s: float) -> None:
        for tensor in self._stage.indexed.reads[layer]:
            maker = self._stage.indexed.source[tensor]
            if self._is_gone_behind(layer, tensor):
                self._drop_copies(tensor, maker, now_s)
            if maker != FROM_HOST and not self._stage.indexed.held[tensor]:
                self._released_by(maker, now_s)

    def _is_gone_behind(self, layer: int, tensor: int) -> bool:
        """Whether a tensor's copies are released behind a layer. In training autograd may hold the tensor."""
        indexed = self._stage.indexed
        last = indexed.brief[tensor] and layer == indexed.consumers[tensor][-1]
        return last and not self._stage.graph.training

    def _drop_copies(self, tensor: int, maker: int, now_s: float) -> None:
        """Drop the copies of a tensor that is gone, whatever becomes of the memory that it showed."""
        copies = self._copied.get(maker, [])
        for number in [number for number in copies if self._transfers[number].tensor == tensor]:
            copies.remove(number)
            self._drop_copy(number, now_s)

    def _released_by(self, maker: int, now_s: float) -> None:
        """Release one hold on a layer's output. The last drops it, after the bases that only it held."""
        indexed, waiting, gone = self._stage.indexed, [maker], []
        while waiting:
            layer = waiting.pop()
            self._users[layer] -= 1
            if self._users[layer]:
                continue
            gone.append(layer)
            for tensor in indexed.reads[layer] if indexed.is_view[layer] else ():
                if indexed.source[tensor] != FROM_HOST and not indexed.held[tensor]:
                    waiting.append(indexed.source[tensor])
        for layer in reversed(gone):
            self._drop(layer, now_s)

    def _drop(self, maker: int, now_s: float) -> None:
        """Drop an output that the code no longer holds; autograd may still hold parts of it."""
        stage, memory, device = self._stage, self._memory, self._stage.device_of[maker]
        self._dropped[maker] = True
        left = self.kept.sent(maker)
        memory.drop(device, stage.footprints[maker].output_bytes, left, now_s)
        readers = [
            reader for tensor in stage.indexed.makes[maker] for reader in stage.indexed.keepers[tensor]
        ]
        keepers = {reader for reader in readers if stage.device_of[reader] == device}
        if keepers:
            self.kept.lent[maker] = keepers
        else:
            memory.drop(device, stage.lent_bytes[maker], left, now_s)
        copies, base = self._copied.pop(maker, []), self._base(maker)
        if base is not None:  # the view may be the base tensor itself: its copies live as long as the base
            self._copied.setdefault(base, []).extend(copies)
            return
        stays = self._stays[maker] or (keepers and stage.graph.training)
        for number in copies:  # of a tensor that is alive, the step keeps copies until it is over
            if (stays or stage.indexed.held[self._transfers[number].tensor]) and not self._over:
                self._copied.setdefault(FROM_HOST, []).append(number)
            else:
                self._drop_copy(number, now_s)

    def _base(self, maker: int) -> int | None:
        """The layer whose output a layer's output is a view of, if that is still held."""
        if not self._stage.indexed.is_view[maker]:
            return None
        bases = [self._stage.indexed.source[tensor] for tensor in self._stage.indexed.reads[maker]]
        return next((base for base in bases if base != FROM_HOST and not self._dropped[base]), None)

    def _drop_copy(self, number: int, now_s: float) -> None:
        transfer = self._transfers[number]
        keepers = self._stage.indexed.keepers[transfer.tensor]
        keeping = {reader for reader in transfer.consumers if reader in keepers}
        if keeping and self._stage.graph.training:
            self.kept.copies[transfer.tensor, transfer.target] = keeping
        else:
            self._memory.drop(transfer.target, transfer.copy_bytes, self._newest_s[transfer.target], now_s)

    def finish(self, now_s: float) -> None:
        """End the forward: its variables are released, and the host has what it fetched."""
        self._over = True
        for maker in reversed(range(len(self._dropped))):
            if not self._dropped[maker]:
                self._drop(maker, now_s)
        for number in self._copied.pop(FROM_HOST, ()):
            self._drop_copy(number, now_s)
        held_bytes = list(self._stage.held_bytes)
        for maker, size_bytes, _ in self._stage.indexed.fetched:
            gone_bytes = min(held_bytes[maker], size_bytes, self.kept.own_bytes[maker])
            held_bytes[maker] -= gone_bytes
            self.kept.own_bytes[maker] -= gone_bytes
            self._memory.drop(self._stage.device_of[maker], gone_bytes, OVER, now_s)
