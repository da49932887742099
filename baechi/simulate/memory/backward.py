"""Bytes on each device in backward, if the host's program is known. It continues `forward`'s count.

- What autograd saved for a layer is freed with the layer's backward. Until then the backward adds what it
  makes, weight gradients included, less what it has already freed (`IndexedPlan.rise_bytes`): all at once.
- A weight's gradient is allocated in the backward of the first layer that makes one, since the step
  before ended with `zero_grad()`.
- The gradient of an activation lives from the first consumer's backward to its producer's, on each
  device. A layer without backward kernels passes on the gradient that it got. Where two gradients of
  a tensor meet, their sum is a third tensor.
- Memory that another stream used (`record_stream`) is reusable when every thread's clock is past the end of
  that use. A thread without work keeps the clock that it began with.
"""

from collections.abc import Callable, Iterable, Sequence

from baechi.cost.indexed_graph import FROM_HOST
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.memory.counter import Counter
from baechi.simulate.memory.event_memory import OVER
from baechi.simulate.memory.forward import Kept
from baechi.simulate.memory.gradients import Gradient, Gradients
from baechi.simulate.time.issue import Times
from baechi.simulate.time.transfers import RETURNED, Transfer

Drop = Callable[[int, int, float, float], None]
"""Counts bytes of a device that are released: until when streams may use them, and when that is."""


class BackwardLedger:
    """Counts the bytes of a backward.

    Args:
        stage: the plan, in the order of launches.
        memory: where to count, as the forward left it.
        kept: what the forward keeps for backward.
        transfers: the transfers of the backward.
        times: when the host issued them, and when they ran.
        start_s: when the backward began.
        released: counts what autograd kept when it is released; unless given, `memory.drop`.
    """

    def __init__(
        self,
        stage: IndexedPlan,
        memory: Counter,
        kept: Kept,
        transfers: Sequence[Transfer],
        times: Times,
        start_s: float,
        released: Drop | None = None,
    ) -> None:
        self._stage = stage
        self._memory = memory
        self._released = released or memory.drop
        self._kept = kept
        self._transfers = transfers
        self._times = times
        self._newest_s = [OVER] * stage.host
        self._clocks = [start_s] * stage.host
        self._gradients = Gradients()
        self._returned: dict[int, list[int]] = {}  # by layer: what it returns that no layer reads
        self._works = stage.works_back

    @property
    def now_s(self) -> float:
        """The latest clock of all issuing threads."""
        return max(self._clocks)

    def launch(self, layer: int) -> None:
        """Count a layer's backward."""
        stage, memory, device = self._stage, self._memory, self._stage.device_of[layer]
        works = self._works[layer]
        if works:
            self._issue(device, stage.rise_bytes[layer])
            memory.free(device, stage.rise_bytes[layer])
        now_s = min(self._clocks)
        self._newest_s[device] = self._times.works[layer].end_s
        sent_bytes = min(self._sent_bytes(layer), self._kept.own_bytes[layer])
        self._released(device, sent_bytes, self._kept.sent(layer), now_s)
        self._released(device, self._kept.own_bytes[layer] - sent_bytes, OVER, now_s)
        self._issue(device, stage.footprints[layer].gradient_bytes)
        given = (*stage.indexed.makes[layer], *self._returned.get(layer, ()))
        if works:
            self._take(given, device)
        self._hand_on(layer, works=works)
        for tensor in stage.indexed.reads[layer]:
            self._released_by(layer, tensor, now_s)
        self._take(given, device)
        self._returned.pop(layer, None)
        if works:  # a thread that only hands on is as far as its last kernel
            self._clocks[device] = max(self._clocks[device], self._times.issued_s[layer][1])

    def _take(self, given: Iterable[int], device: int) -> None:
        """Drop the gradients of a layer's outputs."""
        for tensor in given:
            self._drop(self._gradients.take(tensor, device), device)

    def begin(self, number: int) -> None:
        """Count the gradient of an output that stays."""
        maker, size_bytes, _ = self._stage.indexed.returned[number]
        device = self._stage.device_of[maker]
        self._issue(device, size_bytes)
        self._add(self._joins(RETURNED - number, maker, size_bytes), device, Gradient(size_bytes))

    def send(self, number: int) -> None:
        """Count a gradient that leaves: its copy is allocated on the target when the host asks for it."""
        transfer = self._transfers[number]
        self._issue(transfer.target, self._copy_bytes(transfer))
        issuer = transfer.target if transfer.source == self._stage.host else transfer.source
        self._clocks[issuer] = max(self._clocks[issuer], self._times.asked_s[number])
        self._kept.newest_sent[transfer.source, transfer.target] = self._times.moves[number].end_s

    def receive(self, number: int) -> None:
        """Count a gradient that has arrived: the source releases it, the target adds it to its own."""
        transfer, arrived = self._transfers[number], self.leave(number)
        tensor = transfer.tensor
        if tensor < 0:
            tensor = self._joins(tensor, transfer.consumers[0], transfer.size_bytes)
        self._add(tensor, transfer.target, arrived, self._times.asked_s[number])

    def leave(self, number: int) -> Gradient:
        """Let the source release a gradient that was sent."""
        transfer, until_s = self._transfers[number], self._times.moves[number].end_s
        if transfer.source != self._stage.host:
            sent = self._gradients.get(transfer.tensor, transfer.source)
            if sent is not None:
                sent.until_s = max(sent.until_s, until_s)
            self._drop(self._gradients.take(transfer.tensor, transfer.source), transfer.source)
        return Gradient(self._copy_bytes(transfer), until_s)

    def take_out(self, tensor: int, device: int) -> Gradient | None:
        """Let a gradient wait: nothing is added to it, until it is put in."""
        gradient = self.hold(tensor, device)
        self._gradients.take(tensor, device)
        if gradient is not None:
            gradient.holders -= 1
        return gradient

    def put_in(self, tensor: int, device: int, gradient: Gradient) -> None:
        """Add a gradient that waited to what is there."""
        self._add(tensor, device, gradient)

    def hold(self, tensor: int, device: int) -> Gradient | None:
        """Keep the gradient of a tensor, whatever takes it, until `let_go`."""
        gradient = self._gradients.get(tensor, device)
        if gradient is not None:
            gradient.holders += 1
        return gradient

    def let_go(self, gradient: Gradient, device: int) -> None:
        """Keep it no more."""
        gradient.holders -= 1
        if not gradient.holders:
            self._drop(gradient, device)

    def _issue(self, device: int, size_bytes: int) -> None:
        self._memory.issue(device, size_bytes, self._clocks[device], min(self._clocks))

    def _copy_bytes(self, transfer: Transfer) -> int:
        """Bytes of an arriving gradient. A slice of one may keep its gaps: at most as much as the whole."""
        if len(transfer.producers) != 1 or self._works[transfer.producers[0]]:
            return transfer.size_bytes
        return max(transfer.size_bytes, self._stage.footprints[transfer.producers[0]].upstream_bytes)

    def _sent_bytes(self, layer: int) -> int:
        """Bytes of its sent outputs that autograd saves for the layer's own backward."""
        stage = self._stage
        if layer not in self._kept.ways:
            return 0
        made = sum([stage.indexed.size_bytes[tensor] for tensor in stage.indexed.makes[layer]])
        return max(0, made - stage.lent_bytes[layer] - stage.footprints[layer].output_bytes)

    def _joins(self, output: int, maker: int, size_bytes: int) -> int:
        """The tensor whose gradient that of an output belongs to: layers may also read what is returned."""
        indexed = self._stage.indexed
        alike = [tensor for tensor in indexed.makes[maker] if indexed.size_bytes[tensor] == size_bytes]
        if not alike:
            self._returned.setdefault(maker, []).append(output)
        return alike[0] if alike else output

    def _hand_on(self, layer: int, *, works: bool) -> None:
        """Count the gradients of a layer's inputs: new tensors, or the incoming one passed on."""
        indexed, device = self._stage.indexed, self._stage.device_of[layer]
        given = (*indexed.makes[layer], *self._returned.get(layer, ()))
        got = [] if works else [self._gradients.get(tensor, device) for tensor in given]
        for tensor in indexed.reads[layer]:
            if layer not in indexed.graded[tensor] or indexed.source[tensor] == FROM_HOST:
                continue
            size_bytes = indexed.size_bytes[tensor]
            # without a kernel the whole output's gradient is only viewed, even if it is expanded (of a sum)
            enough_bytes = min(size_bytes, self._stage.footprints[layer].upstream_bytes or size_bytes)
            same = next((g for g in got if g is not None and g.seen_bytes >= enough_bytes), None)
            if same is None:
                self._issue(device, size_bytes)
            else:
                same.expanded_bytes = max(same.seen_bytes, size_bytes)
            self._add(tensor, device, same or Gradient(size_bytes))

    def _add(self, tensor: int, device: int, gradient: Gradient, asked_s: float | None = None) -> None:
        """Add one more gradient of a tensor. `asked_s` is given if it was sent: the host adds it itself."""
        there = self._gradients.get(tensor, device)
        if there is not None:
            own_bytes = self._stage.indexed.size_bytes[tensor] if tensor >= 0 else gradient.size_bytes
            size_bytes = min(there.seen_bytes, gradient.seen_bytes, own_bytes)  # a sum is contiguous
            self._issue(device, size_bytes)
            there.read_beside(gradient)
            if asked_s is not None:
                launch_s = self._stage.cluster.launch_s
                self._clocks[device] = max(self._clocks[device], asked_s) + launch_s
            if not gradient.holders:
                self._drop(gradient, device)
            gradient = Gradient(size_bytes)
        self._drop(self._gradients.put(tensor, device, gradient), device)

    def _drop(self, gradient: Gradient | None, device: int) -> None:
        """Drop a gradient without holders. One that a copy stream touched waits for both streams."""
        if gradient is not None:
            # The kernel that used it last is the one just issued, so its end is no earlier than now.
            issued_s = self._clocks[device] + self._stage.cluster.launch_s
            last_s = max(gradient.until_s, self._newest_s[device], issued_s)
            until_s = last_s if gradient.is_shared else OVER
            self._memory.drop(device, gradient.size_bytes, until_s, min(self._clocks))

    def _released_by(self, layer: int, tensor: int, now_s: float) -> None:
        """A layer no longer needs an input; the last layer that autograd saved it for frees it."""
        indexed, kept, device = self._stage.indexed, self._kept, self._stage.device_of[layer]
        maker = indexed.source[tensor]
        lent = kept.lent.get(maker)
        if lent and layer in lent:
            lent.discard(layer)
            if not lent:
                self._released(device, self._stage.lent_bytes[maker], self._kept.sent(maker), now_s)
        copies = kept.copies.get((tensor, device))
        if copies and layer in copies:
            copies.discard(layer)
            if not copies:
                size_bytes = indexed.copy_bytes[tensor]
                self._released(device, size_bytes, self._newest_s[device], now_s)
