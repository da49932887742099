"""Bytes on each device, event by event, for graphs that do not say what the host takes.

When each kind of bytes is counted:

- parameters and buffers, and optimizer state in training: always;
- gradients of parameters: from the start of their layer's backward on;
- what autograd saves: from a layer's forward to the end of its backward;
- other output: from the start of its layer until its consumers on the device have ended, its
  transfers have arrived, and no variable holds it (`held_until`). Output without a consumer is
  returned to the caller and stays;
- the base of a view: as long as the view;
- a copy from another device: from the start of its transfer until its consumers there have ended and
  its original is freed (the batch never is). In training autograd may save it, so it stays until its
  gradient has been sent back;
- a gradient from another device: from the start of its transfer until the backward of the layer whose
  output it belongs to has run;
- transient bytes, and the gradient of the output: while the layer runs;
- transient bytes of the optimizer: when backward is over, beside gradients and what is always there.

A gradient that waits on the device where it was computed is not counted: the layer that computed it
has freed at least as much of what it had saved.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from baechi.cost.indexed_graph import FROM_HOST
from baechi.cost.memory import update_peak_bytes
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.time.issue import Times
from baechi.simulate.time.transfers import NO_TENSOR, Transfer

OVER = 0.0
"""When streams have finished with memory that only the device's own uses: it runs in order."""


class Memory:
    """Bytes by device: live now, and the peak.

    Args:
        stage: the plan; its permanent bytes are counted from the beginning.
        is_drawn: whether to note a curve of each device.

    Attributes:
        stepping_bytes: by device, bytes while the optimizer steps.
    """

    def __init__(self, stage: IndexedPlan, *, is_drawn: bool = False) -> None:
        self.is_drawn = is_drawn
        self.live_bytes = [0] * stage.host
        for layer, footprint in enumerate(stage.footprints):
            self.live_bytes[stage.device_of[layer]] += footprint.always_bytes
        self.stepping_bytes = stepping_bytes(stage)
        self.peak_bytes = list(self.stepping_bytes)
        self._curve = [[(0.0, live)] for live in self.live_bytes]
        self._limit_bytes = [device.memory_bytes for device in stage.cluster.devices]
        self._pending: list[list[tuple[float, int]]] = [[] for _ in self.live_bytes]

    def take(self, device: int, size_bytes: int) -> None:
        """Count bytes that are allocated on a device."""
        self.live_bytes[device] += size_bytes
        self.peak_bytes[device] = max(self.peak_bytes[device], self.live_bytes[device])

    def free(self, device: int, size_bytes: int) -> None:
        """Count bytes that are freed on a device."""
        self.live_bytes[device] -= size_bytes

    def issue(self, device: int, size_bytes: int, now_s: float, least_s: float | None = None) -> None:
        """Count bytes that the host asks for, after freeing memory whose last use is over by then."""
        pending, known_s = self._pending[device], now_s if least_s is None else least_s
        while pending and pending[0][0] <= known_s:  # a slower thread may still delay what is over later
            self.free(device, heappop(pending)[1])
        if self.live_bytes[device] + size_bytes > self._limit_bytes[device]:  # the allocator waits
            self.free(device, sum([size for _, size in pending]))
            pending.clear()
        self.take(device, size_bytes)
        if self.is_drawn:
            self.draw(device, now_s)

    def step(self, now_s: float) -> None:
        """Count the optimizer's step. It may begin while streams still use memory that was released."""
        for device, pending in enumerate(self._pending):
            late_bytes = sum([size_bytes for until_s, size_bytes in pending if until_s > now_s])
            full_bytes = self.stepping_bytes[device] + late_bytes
            if full_bytes <= self._limit_bytes[device]:  # else the host waits for the streams
                self.peak_bytes[device] = max(self.peak_bytes[device], full_bytes)

    def drop(self, device: int, size_bytes: int, until_s: float, now_s: float) -> None:
        """Release bytes that a stream may still be using."""
        if until_s <= now_s:
            self.free(device, size_bytes)
            if self.is_drawn:
                self.draw(device, now_s)
        elif size_bytes:
            heappush(self._pending[device], (until_s, size_bytes))

    def draw(self, device: int, now_s: float) -> None:
        """Note what a device holds now."""
        curve = self._curve[device]
        curve.append((max(now_s, curve[-1][0]), self.live_bytes[device]))

    def by_device(self, names: Sequence[str], end_s: float) -> dict[str, tuple[tuple[float, int], ...]]:
        """The bytes that each device held, from the start of forward to the optimizer's step."""
        return {
            name: _steps([*curve, (end_s, last)])
            for name, curve, last in zip(names, self._curve, self.stepping_bytes, strict=True)
        }


def _steps(curve: Iterable[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    steps: list[tuple[float, int]] = []
    for time_s, size in curve:
        if steps and time_s == steps[-1][0] and size > steps[-1][1]:
            steps.pop()
        if not steps or size != steps[-1][1]:
            steps.append((time_s, size))
    return tuple(steps)


def stepping_bytes(stage: IndexedPlan) -> list[int]:
    """By device, the bytes it holds when the optimizer steps."""
    resident, total, largest = ([0] * stage.host for _ in range(3))
    for layer, footprint in enumerate(stage.footprints):
        device = stage.device_of[layer]
        resident[device] += footprint.resident_bytes
        total[device] += footprint.update_bytes
        largest[device] = max(largest[device], footprint.largest_update_bytes)
    return [there + update_peak_bytes(*pair) for there, *pair in zip(resident, total, largest, strict=True)]


class _Watching(ABC):
    """Counts the bytes of a phase from its events.

    Args:
        stage: the plan.
        memory: where to count.
        transfers: the transfers of the phase.
    """

    def __init__(self, stage: IndexedPlan, memory: Memory, transfers: Sequence[Transfer]) -> None:
        self._stage, self._memory, self._transfers = stage, memory, transfers

    @abstractmethod
    def started(self, layer: int) -> None:
        """A layer starts."""

    @abstractmethod
    def ended(self, layer: int) -> None:
        """A layer has ended."""

    @abstractmethod
    def left(self, number: int) -> None:
        """A transfer that travels leaves."""

    @abstractmethod
    def arrived(self, number: int) -> None:
        """A transfer that travels has arrived."""

    def count(self, times: Times) -> None:
        """Go through the events of a phase.

        At one time ends come first, then transfers leave, then layers start: what is freed at a time can be
        allocated at that time. What takes no time ends right after its start.
        """
        happen = self.started, self.ended, self.left, self.arrived
        moves = [(number, job) for number, job in times.moves.items() if number < len(self._transfers)]
        events = []
        for jobs, begins, what in ((times.works.items(), 2, 0), (moves, 1, 2)):  # not what the host fetches
            for number, job in jobs:
                takes_time = job.end_s > job.start_s
                events.append((job.start_s, begins if takes_time else 2, 2 * job.number, what, number))
                events.append((job.end_s, 0 if takes_time else 2, 2 * job.number + 1, what + 1, number))
        events.sort()
        memory = self._memory
        drawn = range(len(memory.live_bytes) if memory.is_drawn else 0)
        live_bytes = list(memory.live_bytes)
        for time_s, _, _, what, number in events:
            happen[what](number)
            for device in drawn:
                if live_bytes[device] != memory.live_bytes[device]:
                    live_bytes[device] = memory.live_bytes[device]
                    memory.draw(device, time_s)


class ForwardMemory(_Watching):
    """Counts the bytes of a forward.

    Args:
        stage, memory, transfers: as for `_Watching`.
    """

    def __init__(self, stage: IndexedPlan, memory: Memory, transfers: Sequence[Transfer]) -> None:
        super().__init__(stage, memory, transfers)
        self._held = [0] * len(stage.indexed)
        self._readers: dict[tuple[int, int], int] = {}
        self._copies: dict[int, list[tuple[int, int]]] = {}
        self._named = {maker for makers in stage.indexed.releases.values() for maker in makers}
        for makers in stage.indexed.releases.values():
            for maker in makers:
                # One for the variable, one for the layer itself: the variable may go before the layer runs.
                self._held[maker] += 2
        for transfer in transfers:
            if transfer.travels:
                self._readers[transfer.tensor, transfer.target] = len(transfer.consumers)
            for maker in transfer.producers if transfer.tensor != NO_TENSOR else ():
                self._held[maker] += 1 if transfer.travels else len(transfer.consumers)

    def started(self, layer: int) -> None:
        """A layer starts: its output, saved and transient bytes are allocated."""
        footprint = self._stage.footprints[layer]
        self._memory.take(self._stage.device_of[layer], footprint.saved_bytes + footprint.forward_bytes)

    def ended(self, layer: int) -> None:
        """A layer has ended: its transient bytes are freed, and it releases its inputs."""
        self._memory.free(self._stage.device_of[layer], self._stage.footprints[layer].temp_bytes)
        if not self._stage.indexed.is_view[layer]:
            self._let_inputs_go(layer)
        for maker in self._stage.indexed.releases.get(layer, ()):
            self._released_by(maker)
        if layer in self._named:
            self._released_by(layer)

    def left(self, number: int) -> None:
        """A transfer leaves: its copy is allocated on the target."""
        transfer = self._transfers[number]
        self._memory.take(transfer.target, transfer.copy_bytes)

    def arrived(self, number: int) -> None:
        """A transfer has arrived: it releases its source."""
        for maker in self._transfers[number].producers:
            self._released_by(maker)

    def _released_by(self, maker: int) -> None:
        """Release one hold on a layer's output. The last frees it, and releases the base of a view."""
        if self._is_last(maker) and self._stage.indexed.is_view[maker]:
            self._let_inputs_go(maker)

    def _let_inputs_go(self, reader: int) -> None:
        indexed, device_of, waiting = self._stage.indexed, self._stage.device_of, [reader]
        while waiting:
            layer = waiting.pop()
            for tensor in indexed.reads[layer]:
                maker, key = indexed.source[tensor], (tensor, device_of[layer])
                if key not in self._readers:
                    if self._is_last(maker) and indexed.is_view[maker]:
                        waiting.append(maker)
                    continue
                self._readers[key] -= 1
                if self._readers[key] == 0 and not self._stage.graph.training:
                    self._let_copy_go(*key)

    def _let_copy_go(self, tensor: int, device: int) -> None:
        """Free a copy that was read for the last time, or leave it until its original is freed."""
        maker = self._stage.indexed.source[tensor]
        if maker == FROM_HOST:
            return
        if self._held[maker] > 0:
            self._copies.setdefault(maker, []).append((tensor, device))
        else:
            self._memory.free(device, self._stage.indexed.copy_bytes[tensor])

    def _is_last(self, maker: int) -> bool:
        """Release one hold on a layer's output. If it was the last, free the output and its copies."""
        self._held[maker] -= 1
        if self._held[maker]:
            return False
        self._memory.free(self._stage.device_of[maker], self._stage.footprints[maker].output_bytes)
        for tensor, device in self._copies.pop(maker, ()):
            self._memory.free(device, self._stage.indexed.copy_bytes[tensor])
        return True


class BackwardMemory(_Watching):
    """Counts the bytes of a backward.

    Args:
        stage, memory, transfers: as for `_Watching`; the memory as the forward left it.
        forward: the transfers of the forward.
    """

    def __init__(
        self,
        stage: IndexedPlan,
        memory: Memory,
        transfers: Sequence[Transfer],
        forward: Sequence[Transfer],
    ) -> None:
        super().__init__(stage, memory, transfers)
        self._received_bytes = [0] * len(stage.indexed)
        self._uploads = {
            (transfer.tensor, transfer.target): len(transfer.consumers)
            for transfer in forward
            if transfer.source == stage.host
        }

    def started(self, layer: int) -> None:
        """A layer starts: transient bytes are allocated, and what did not arrive of its output's gradient."""
        gradient_bytes = self._stage.footprints[layer].gradient_bytes
        self._memory.take(self._stage.device_of[layer], self._own_bytes(layer) + gradient_bytes)

    def ended(self, layer: int) -> None:
        """A layer has ended: its transient bytes, its output's gradient and its saved bytes are freed."""
        device = self._stage.device_of[layer]
        given_back = self._own_bytes(layer) + self._received_bytes[layer]
        self._memory.free(device, given_back + self._stage.footprints[layer].saved_bytes)
        for tensor in self._stage.indexed.reads[layer]:
            if (tensor, device) in self._uploads:
                self._uploads[tensor, device] -= 1
                if self._uploads[tensor, device] == 0:
                    self._memory.free(device, self._stage.indexed.copy_bytes[tensor])

    def left(self, number: int) -> None:
        """A transfer leaves: its gradient is allocated on the target."""
        transfer = self._transfers[number]
        self._memory.take(transfer.target, transfer.size_bytes)
        for maker in transfer.consumers:
            self._received_bytes[maker] += transfer.size_bytes

    def arrived(self, number: int) -> None:
        """A gradient has arrived: the forward copy that it is the gradient of is freed."""
        transfer = self._transfers[number]
        if transfer.source != self._stage.host:
            self._memory.free(transfer.source, self._stage.indexed.copy_bytes[transfer.tensor])

    def _own_bytes(self, layer: int) -> int:
        footprint = self._stage.footprints[layer]
        return footprint.temp_bytes + max(0, footprint.upstream_bytes - self._received_bytes[layer])
