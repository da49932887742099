"""How full each emulated device is, as CUDA's caching allocator would have it.

A block belongs to the stream that was current at its allocation. When its last tensor dies, that stream
may reuse it at once. So each use on another stream must be known to be over by then, or must have been
announced (`use`, as `Tensor.record_stream`). A block with an announced use returns when the host's clock
has passed that use. Before the allocator reports out of memory, the host waits for all such blocks.
Sizes are exact: there is no rounding and no fragmentation. (`caching` has both, for GPUs.)
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import torch

from baechi.backend.memory_error import DeviceMemoryError
from baechi.backend.virtual.machine.blocks import Block, early_free
from baechi.backend.virtual.machine.notes import MemoryNotes
from baechi.backend.virtual.machine.streams import Access, Host, Stream
from baechi.cost.clock import Clock, Job
from baechi.records.device import Device
from baechi.torchlib.tensors.storage import Mark, mark_of, set_mark, storage_bytes

_Pending = tuple[tuple[Job, ...], int, int]
"""What must be over before a block comes back, how large it is, and its key."""


class Allocator:
    """The memory of all devices of an emulated cluster.

    Args:
        devices: with their limits.
        streams: by device, the stream for what lay there before.
        clock: when uses are over.
        issuer: the host that issues for a device, in the calling thread.
        notes: writes down what happens; None if nothing has to.
        apart: whether each device has a host of its own, and nothing is shared for which two of them queue.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        streams: Sequence[Stream],
        clock: Clock,
        issuer: Callable[[int], Host],
        *,
        notes: MemoryNotes | None = None,
        apart: bool = False,
    ) -> None:
        self._notes, self._apart = notes, apart
        self._keys = itertools.count()
        self.fault: BaseException | None = None
        self._names = [device.name for device in devices]
        self._kinds = [device.kind for device in devices]
        self._index = {name: place for place, name in enumerate(self._names)}
        self._limit_bytes = [device.memory_bytes for device in devices]
        self._live_bytes = [0] * len(devices)
        self._peak_bytes = [0] * len(devices)
        # by the streams that used a block: streams run in order, so only the head of each queue is checked
        self._pending: list[dict[tuple[Stream, ...], deque[_Pending]]] = [{} for _ in devices]
        self._streams = streams
        self._clock = clock
        self._issuer = issuer
        self._open = True

    @property
    def peak_bytes(self) -> dict[str, int]:
        """The most that each device held since `restart_peaks`."""
        return dict(zip(self._names, self._peak_bytes, strict=True))

    @property
    def live_bytes(self) -> dict[str, int]:
        """What each device holds now."""
        self._reclaim()
        return dict(zip(self._names, self._live_bytes, strict=True))

    def restart_peaks(self) -> None:
        """Forget the peaks so far, and what was held when."""
        self._reclaim()
        self._peak_bytes = list(self._live_bytes)
        if self._notes is not None:
            for device, live_bytes in enumerate(self._live_bytes):
                self._notes.restart(device, self._issuer(device).now_s, live_bytes)

    def block(self, tensor: torch.Tensor, mark: Mark) -> Block:
        """The memory of a tensor that lies on a device; counted from now on if it was not."""
        block: Block | None = mark.block
        if block is None or block.owner is not self:
            mark.size_bytes = storage_bytes(tensor)
            device = self._index[str(mark.place)]
            self._reserve(device, mark.size_bytes, lambda: "a tensor from before")
            block = self._count(mark, self._streams[device])
            block.write = Access(block.stream, 0, "a tensor from before", "")
        return block

    def allocate(
        self, tensors: Iterable[torch.Tensor], device: int, stream: Stream, what: Callable[[], str]
    ) -> list[Block]:
        """Count tensors that were made on a device: all of them, or none."""
        place, new = self._names[device], []
        for tensor in tensors:
            mark = mark_of(tensor)
            if mark is None:
                mark = Mark(place, size_bytes=storage_bytes(tensor))
                set_mark(tensor, mark)
                new.append(mark)
            elif mark.place is None:
                mark.place, mark.size_bytes = place, storage_bytes(tensor)
                new.append(mark)
        if not new:
            return []
        self._reserve(device, sum([mark.size_bytes for mark in new]), what)
        return [self._count(mark, stream) for mark in new]

    def resize(self, tensor: torch.Tensor) -> None:
        """Count a storage anew that may have grown."""
        mark = mark_of(tensor)
        block: Block | None = mark.block if mark is not None else None
        if mark is not None and block is not None and block.owner is self:
            grown_bytes = storage_bytes(tensor) - block.size_bytes
            device = self._index[str(mark.place)]
            use = block.unsaid_use() if grown_bytes > 0 else None
            if use is not None:
                raise early_free(block, use)
            self._reserve(device, max(0, grown_bytes), lambda: "resize_")
            self._add(device, min(0, grown_bytes))
            block.size_bytes += grown_bytes
            if self._notes is not None:
                events = self._notes.events[device]
                events.append(("free", block.key, 0, None))
                events.append(("allocate", block.key, block.size_bytes, block.stream))

    def died(self, block: Block) -> None:
        """Free a block whose last tensor died; called from `Block.__del__`."""
        if not self._open:
            return
        device = block.stream.device
        block.stream.follow(self._issuer(device))
        use = block.unsaid_use()
        if use is not None and self.fault is None:
            self.fault = early_free(block, use)
        after = tuple([job for stream in block.used for job in stream.record().jobs])
        if after:
            queues = self._pending[device]
            queues.setdefault(tuple(block.used), deque()).append((after, block.size_bytes, block.key))
            if self._notes is not None:
                self._notes.events[device].append(("release", block.key, 0, None))
        else:
            self._come_back(device, block.size_bytes, block.key)

    def close(self) -> None:
        """End the emulation: blocks that die from now on are not counted."""
        self._open = False

    def _add(self, device: int, size_bytes: int) -> None:
        self._live_bytes[device] += size_bytes
        if self._notes is not None:
            self._notes.held(device, self._issuer(device).now_s, self._live_bytes[device])

    def _come_back(self, device: int, size_bytes: int, key: int) -> None:
        self._add(device, -size_bytes)
        if self._notes is not None:
            self._notes.events[device].append(("free", key, 0, None))

    def _count(self, mark: Mark, stream: Stream) -> Block:
        mark.block = block = Block(stream, mark.size_bytes, self, next(self._keys))
        if self._notes is not None:
            self._notes.events[stream.device].append(("allocate", block.key, block.size_bytes, stream))
        return block

    def _reserve(self, device: int, size_bytes: int, what: Callable[[], str]) -> None:
        if self._pending[device]:
            self._reclaim()
        limit_bytes, pending = self._limit_bytes[device], self._pending[device]
        if self._live_bytes[device] + size_bytes > limit_bytes and pending:
            host = self._issuer(device)  # as CUDA's allocator synchronizes before it reports no memory
            host.now_s = max(
                [host.now_s, *[self._clock.finish(queue[-1][0]) for queue in pending.values() if queue]]
            )
            self._take_back(device, host.now_s)
        live_bytes = self._live_bytes[device]
        if live_bytes + size_bytes > limit_bytes:
            raise DeviceMemoryError(
                what(),
                device=self._names[device],
                kind=self._kinds[device],
                needed_bytes=size_bytes,
                live_bytes=live_bytes,
                memory_bytes=limit_bytes,
            )
        self._add(device, size_bytes)
        self._peak_bytes[device] = max(self._peak_bytes[device], self._live_bytes[device])

    def _reclaim(self) -> None:
        times_s = [self._issuer(device).now_s for device in range(len(self._names))]
        self._clock.settle(max(times_s) if self._apart else min(times_s))
        for device in range(len(self._names)):
            self._take_back(device, self._issuer(device).now_s)

    def _take_back(self, device: int, now_s: float) -> None:
        """Take back what was pending and is over by now."""
        queues = self._pending[device]
        for streams, queue in list(queues.items()):
            while queue and all(job.timed and job.end_s <= now_s for job in queue[0][0]):
                _, size_bytes, key = queue.popleft()
                self._come_back(device, size_bytes, key)
            if not queue:
                del queues[streams]
