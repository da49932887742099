"""How full each device is, event by event: who watches the engine and counts bytes.

- parameters and buffers, in training optimizer state: always;
- gradients of parameters: from the start of their layer's backward on;
- what autograd keeps: from a layer's forward to the end of its backward;
- other output: from the start of its layer until the layers there that read it have ended and the
  transfers that read it have arrived, and until the variables are gone that hold it (`held_until`);
  what nobody reads is returned to the caller and stays;
- a view holds what it views as long as it is held itself;
- a copy from another device: from the start of its transfer until the layers there that read it
  have ended, and what it is a copy of is gone (the batch never is); in training, where autograd may
  keep it, until its gradient has gone back;
- a gradient from another device: from the start of its transfer until the layer that it is for has
  run backward, where it is part of the gradient of the layer's output;
- temporary bytes, and the gradient of the output: while the layer runs;
- temporary bytes of the optimizer: when backward is over, beside gradients and what is always there.

A gradient that waits on the device where it was computed is not counted: the layer that computed it
has given back what it had saved.
"""

from heapq import heappop, heappush

from baechi.cost.indexed import FROM_HOST
from baechi.cost.memory import update_peak_bytes
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.memory.use import Use
from baechi.simulate.time.transfers import NO_TENSOR, Transfer


class Memory:
    """Bytes by device, now and at most.

    Args:
        stage: the plan; what is always there is there from the beginning.

    Attributes:
        stepping_bytes: while the optimizer steps.
        curve: by device, `(seconds, bytes)` after each change, where the ledgers say when that is.
    """

    def __init__(self, stage: IndexedPlan) -> None:
        self.live_bytes = [0] * stage.host
        for layer, footprint in enumerate(stage.footprints):
            self.live_bytes[stage.device_of[layer]] += footprint.always_bytes
        self.stepping_bytes = _stepping_bytes(stage)
        self.peak_bytes = list(self.stepping_bytes)
        self.curve = [[(0.0, live)] for live in self.live_bytes]
        self._limit_bytes = [device.memory_bytes for device in stage.cluster.devices]
        self._pending: list[list[tuple[Use, int]]] = [[] for _ in self.live_bytes]

    def take(self, device: int, size_bytes: int) -> None:
        """Count bytes that are allocated on a device."""
        self.live_bytes[device] += size_bytes
        self.peak_bytes[device] = max(self.peak_bytes[device], self.live_bytes[device])

    def free(self, device: int, size_bytes: int) -> None:
        """Count bytes that are freed on a device."""
        self.live_bytes[device] -= size_bytes

    def issue(self, device: int, size_bytes: int, now_s: float, least_s: float | None = None) -> None:
        """Count bytes that the host asks for: what is over by then comes back first.

        Args:
            device: where.
            size_bytes: how many.
            now_s: the clock of the thread that asks.
            least_s: the least clock of all threads; the same unless given.
        """
        pending, known_s = self._pending[device], now_s if least_s is None else least_s
        unknown = []
        while pending and pending[0][0].until_s <= now_s:
            use, over_bytes = heappop(pending)
            if use.ready_s <= known_s:
                self.free(device, over_bytes)
            else:
                unknown.append((use, over_bytes))
        for entry in unknown:
            heappush(pending, entry)
        if self.live_bytes[device] + size_bytes > self._limit_bytes[device]:  # the host waits for it
            self.free(device, sum([size for _, size in pending]))
            pending.clear()
        self.take(device, size_bytes)
        self.curve[device].append((max(now_s, self.curve[device][-1][0]), self.live_bytes[device]))

    def step(self, now_s: float) -> None:
        """Count the optimizer's step, which begins while streams may still be using what is over.

        Args:
            now_s: the host's clock.
        """
        for device, pending in enumerate(self._pending):
            late_bytes = sum([size_bytes for use, size_bytes in pending if use.until_s > now_s])
            full_bytes = self.stepping_bytes[device] + late_bytes
            if full_bytes <= self._limit_bytes[device]:  # else the host waits for them
                self.peak_bytes[device] = max(self.peak_bytes[device], full_bytes)

    def drop(self, device: int, size_bytes: int, use: Use, now_s: float) -> None:
        """Count bytes that nobody holds any more, but a stream may still be using.

        Args:
            device: where.
            size_bytes: how many.
            use: when streams are through with them.
            now_s: the least clock of all threads.
        """
        if use.until_s <= now_s:
            self.free(device, size_bytes)
            self.curve[device].append((max(now_s, self.curve[device][-1][0]), self.live_bytes[device]))
        elif size_bytes:
            heappush(self._pending[device], (use, size_bytes))


def _stepping_bytes(stage: IndexedPlan) -> list[int]:
    """By device: what is there when the optimizer steps."""
    resident, total = ([0] * stage.host for _ in range(2))
    most = [[0, 0] for _ in range(stage.host)]
    for layer, footprint in enumerate(stage.footprints):
        device = stage.device_of[layer]
        resident[device] += footprint.resident_bytes
        total[device] += footprint.update_bytes
        one, other = footprint.largest_update_bytes, footprint.next_update_bytes
        most[device] = sorted([*most[device], one, other])[-2:]
    updates = [update_peak_bytes(all_, *pair[::-1]) for all_, pair in zip(total, most, strict=True)]
    return [there + update for there, update in zip(resident, updates, strict=True)]


class ForwardMemory:
    """Watches a forward.

    Args:
        stage: the plan.
        memory: where to count.
        transfers: what moves.
    """

    def __init__(self, stage: IndexedPlan, memory: Memory, transfers: list[Transfer]) -> None:
        self._stage = stage
        self._memory = memory
        self._held = [0] * len(stage.indexed)
        self._readers: dict[tuple[int, int], int] = {}
        self._copies: dict[int, list[tuple[int, int]]] = {}
        self._named = {maker for makers in stage.indexed.lets_go.values() for maker in makers}
        for makers in stage.indexed.lets_go.values():
            for maker in makers:
                self._held[maker] += 2  # by its variable, and by itself: the variable may go before it runs
        for transfer in transfers:
            if transfer.travels:
                self._readers[transfer.tensor, transfer.target] = len(transfer.consumers)
            for maker in transfer.producers if transfer.tensor != NO_TENSOR else ():
                self._held[maker] += 1 if transfer.travels else len(transfer.consumers)

    def started(self, layer: int) -> None:
        """A layer takes what it makes and needs."""
        footprint = self._stage.footprints[layer]
        self._memory.take(self._stage.device_of[layer], footprint.saved_bytes + footprint.forward_bytes)

    def ended(self, layer: int) -> None:
        """A layer gives back what it needed."""
        self._memory.free(self._stage.device_of[layer], self._stage.footprints[layer].temp_bytes)
        if not self._stage.indexed.borrows[layer]:
            self._let_inputs_go(layer)
        for maker in self._stage.indexed.lets_go.get(layer, ()):
            self._let_go(maker)
        if layer in self._named:
            self._let_go(layer)

    def left(self, transfer: Transfer) -> None:
        """A copy is allocated where it goes."""
        self._memory.take(transfer.target, transfer.size_bytes)

    def arrived(self, transfer: Transfer) -> None:
        """A transfer needs its source no more."""
        for maker in transfer.producers:
            self._let_go(maker)

    def _let_go(self, maker: int) -> None:
        """One less holds a layer's output; with the last one it goes, and what it is a view of may."""
        if self._is_last(maker) and self._stage.indexed.borrows[maker]:
            self._let_inputs_go(maker)

    def _let_inputs_go(self, reader: int) -> None:
        indexed, device_of, waiting = self._stage.indexed, self._stage.device_of, [reader]
        while waiting:
            layer = waiting.pop()
            for tensor in indexed.reads[layer]:
                maker, key = indexed.source[tensor], (tensor, device_of[layer])
                if key not in self._readers:
                    if self._is_last(maker) and indexed.borrows[maker]:
                        waiting.append(maker)
                    continue
                self._readers[key] -= 1
                if self._readers[key] == 0 and not self._stage.graph.training:
                    self._let_copy_go(*key)

    def _let_copy_go(self, tensor: int, device: int) -> None:
        """A copy lives as long as what it is a copy of, and as long as it is read."""
        maker = self._stage.indexed.source[tensor]
        if maker == FROM_HOST:
            return
        if self._held[maker] > 0:
            self._copies.setdefault(maker, []).append((tensor, device))
        else:
            self._memory.free(device, self._stage.indexed.size_bytes[tensor])

    def _is_last(self, maker: int) -> bool:
        """Whether nobody holds a layer's output any more: then it is freed, and its copies are."""
        self._held[maker] -= 1
        if self._held[maker]:
            return False
        self._memory.free(self._stage.device_of[maker], self._stage.footprints[maker].output_bytes)
        for tensor, device in self._copies.pop(maker, ()):
            self._memory.free(device, self._stage.indexed.size_bytes[tensor])
        return True


class BackwardMemory:
    """Watches a backward.

    Args:
        stage: the plan.
        memory: where to count, as the forward left it.
        forward: what moved in the forward.
    """

    def __init__(self, stage: IndexedPlan, memory: Memory, forward: list[Transfer]) -> None:
        self._stage = stage
        self._memory = memory
        self._received_bytes = [0] * len(stage.indexed)
        self._uploads = {
            (transfer.tensor, transfer.target): len(transfer.consumers)
            for transfer in forward
            if transfer.source == stage.host
        }

    def started(self, layer: int) -> None:
        """A layer takes the gradient of its output, as far as it did not arrive, and what it needs."""
        gradient_bytes = self._stage.footprints[layer].gradient_bytes
        self._memory.take(self._stage.device_of[layer], self._own_bytes(layer) + gradient_bytes)

    def ended(self, layer: int) -> None:
        """A layer gives back what it needed, its gradient, and what was kept for it."""
        device = self._stage.device_of[layer]
        given_back = self._own_bytes(layer) + self._received_bytes[layer]
        self._memory.free(device, given_back + self._stage.footprints[layer].saved_bytes)
        for tensor in self._stage.indexed.reads[layer]:
            if (tensor, device) in self._uploads:
                self._uploads[tensor, device] -= 1
                if self._uploads[tensor, device] == 0:
                    self._memory.free(device, self._stage.indexed.size_bytes[tensor])

    def left(self, transfer: Transfer) -> None:
        """A gradient is allocated where it goes."""
        self._memory.take(transfer.target, transfer.size_bytes)
        for maker in transfer.consumers:
            self._received_bytes[maker] += transfer.size_bytes

    def arrived(self, transfer: Transfer) -> None:
        """The copy that the gradient belongs to is needed no more."""
        if transfer.source != self._stage.host:
            self._memory.free(transfer.source, transfer.size_bytes)

    def _own_bytes(self, layer: int) -> int:
        footprint = self._stage.footprints[layer]
        return footprint.temp_bytes + max(0, footprint.upstream_bytes - self._received_bytes[layer])
