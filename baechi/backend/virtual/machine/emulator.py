"""An emulated cluster at work: where storages lie, what runs when, which access is a race, what is full.

Emulation        sees every operation (a dispatch mode)      ┐
VirtualDevices   streams, events, copies for the runtime     ┴─> Emulator
                                                                   ├── Thread    what issues
                                                                   ├── Stream    in which order
                                                                   ├── Clock     when
                                                                   ├── Block     whose memory
                                                                   └── StepRecord
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

import torch

from baechi.backend.virtual.machine.allocator import Allocator
from baechi.backend.virtual.machine.blocks import Block
from baechi.backend.virtual.machine.issuers import Thread, Worked
from baechi.backend.virtual.machine.notes import MemoryNotes
from baechi.backend.virtual.machine.record import Operation, StepRecord
from baechi.backend.virtual.machine.streams import Access, Event, Host, Stream
from baechi.backend.virtual.machine.sums import Sum
from baechi.backend.virtual.machine.threads import RunToken
from baechi.backend.virtual.machine.work import Work
from baechi.cost.clock import COMPUTE, Clock, Job
from baechi.cost.machine import Machine
from baechi.cost.transfer import ring_links, ring_s
from baechi.records.cluster import HOST, Cluster
from baechi.records.device import HostWork
from baechi.records.timeline import SUM, Phase, Timeline
from baechi.torchlib.fakes.kernels import ShapeKernels
from baechi.torchlib.tensors.storage import mark_of

_SETTLE_EVERY = 4096


class Emulator:
    """The state of an emulated cluster from its `with` to the end of it.

    Args:
        cluster: the devices.
        shapes: what runs operators in a dry run; None otherwise.
        ranks: by device, whose host issues for it; empty where one host has all of them.
        replicas: how many groups of devices train, of which the first one runs here.
    """

    def __init__(
        self,
        cluster: Cluster,
        shapes: ShapeKernels | None = None,
        ranks: Sequence[int] = (),
        replicas: int = 1,
    ) -> None:
        self.cluster, self.ranks, self.replicas = cluster, ranks, replicas
        self.shapes = shapes
        self.index = {name: place for place, name in enumerate(cluster.names)}
        self.index_of_host = len(cluster)
        self.lock = threading.RLock()
        self.run_token = RunToken()
        self._launch_s = cluster.launch_s
        self._on_host = frozenset([self.index[name] for name in cluster.on_host])
        self._clock = Clock(Machine(cluster))
        self._compute = [Stream(place, f"{name}/compute") for name, place in self.index.items()]
        self._transfer: dict[tuple[int, int], tuple[Stream, Stream]] = {}
        self._sums: dict[int, Stream] = {}
        self._sides: WeakSet[Stream] = WeakSet()
        self._threads = threading.local()
        self._record = StepRecord(cluster.names, 0.0)
        self.charged: Counter[HostWork] = Counter()
        self._worked = Worked()
        self._first = self._threads.own = Thread(Host(), self._worked, ranks)
        books = cluster.devices, self._compute, self._clock, self._issuer
        self._notes = None if shapes is None else MemoryNotes(cluster.devices)
        self.allocator = Allocator(*books, notes=self._notes, apart=bool(ranks))

    # --- threads, streams, events

    @property
    def thread(self) -> Thread:
        """The calling thread, as an issuer of work; one that is new starts where the first one is."""
        try:
            return self._threads.own  # type: ignore[no-any-return]
        except AttributeError:
            return self.enter_thread(Host(self._first.host.now_s, self._first.host.seen))

    def enter_thread(self, host: Host) -> Thread:
        """The calling thread issues work from now on."""
        own = self._threads.own = Thread(host, self._worked)
        return own

    def take(self, what: HostWork, times: int = 1, device: int | None = None) -> None:
        """Charge the calling thread with what torch does there."""
        taken_s = self._charge(what, times)
        if taken_s is not None:
            self.thread.take(taken_s, device)

    def spend(self, what: HostWork, device: int, times: int = 1) -> None:
        """Charge the calling thread with the runtime's own work."""
        taken_s, thread = self._charge(what, times), self.thread
        if taken_s is not None:
            before = thread.rank
            for rank in range(len(thread.hosts)) if device == self.index_of_host else (before,):
                thread.rank = rank  # what the host does for no device each rank's does
                thread.spend(taken_s, device, computing=what == "functional_op")
            thread.rank = before

    def _charge(self, what: HostWork, times: int) -> float | None:
        """Count some work; the seconds that it takes, or None of a cluster that charges no host."""
        self.charged[what] += times
        return None if self.cluster.host is None else times * self.cluster.host.seconds(what)

    def stream(self, device: int) -> Stream:
        """The stream on which the calling thread computes on a device."""
        side = self.thread.streams.get(device)
        if side is None:
            return self._compute[device]
        self._sides.add(side)
        return side

    def transfer_streams(self, source: int, target: int) -> tuple[Stream, Stream]:
        """The streams of an ordered pair of devices: tx on the source, rx on the target."""
        if (source, target) not in self._transfer:
            ends = (*self.cluster.names, HOST)
            name = f"{ends[source]}>{ends[target]}"
            self._transfer[source, target] = Stream(source, f"{name}/tx"), Stream(target, f"{name}/rx")
        return self._transfer[source, target]

    def record(self, stream: Stream) -> Event:
        """An event on a stream, recorded by the calling thread now."""
        stream.follow(self.thread.issuer(stream.device))
        return stream.record()

    def wait_for(self, event: Event, device: int) -> None:
        """The host waits for an event of a device. (In backward, each device's thread waits for itself.)"""
        host = self.thread.issuer(device)
        host.now_s = max(host.now_s, self._clock.finish(event.jobs))
        host.learn(event.seen)

    def enter_layer(self, layer: str) -> str:
        """What the calling thread issues from now on belongs to a layer."""
        return self.thread.enter_layer(layer, self._record)

    def synchronize(self) -> None:
        """The host waits for everything."""
        ends = [stream for pair in self._transfer.values() for stream in pair]
        streams = [*self._compute, *ends, *self._sides]
        if self.ranks:  # what goes to the host is on no device's stream
            streams = [one for one in streams if one.device < len(self.ranks)]
        last_s, own = self._clock.finish_all(), self.thread.issuer(self.index_of_host)
        for stream in streams:
            host = self.thread.hosts[self.ranks[stream.device]] if self.ranks else own
            event = stream.record()
            host.now_s = max(host.now_s, self._clock.finish(event.jobs), 0.0 if self.ranks else last_s)
            host.learn(event.seen)

    # --- what runs

    def compute(self, device: int, what: str, read: list[Block], written: list[Block], work: Work) -> Access:
        """Issue a kernel; call `check` before it runs."""
        thread = self.thread
        stream = self.stream(device)
        host = thread.issuer(device, works=True)
        phase, layer, record = self._attribution(thread)
        if phase == "backward":  # its inputs may have been issued by another device's thread
            host.now_s = max([host.now_s, *[block.issued_s for block in (*read, *written)]])
        thread.work(host, self._launch_s + thread.pay())
        access = Access(stream, stream.advance(host), what, layer)
        job = Operation(device, COMPUTE, work.seconds(self.cluster.devices[device]), what, layer, phase)
        self._submit(job, host, (stream,), record)
        for block in read:
            block.read(access)
        for block in written:
            block.written(access)
            block.issued_s = host.now_s
        return access

    def send(
        self,
        ends: tuple[int, int],
        what: str,
        blocks: tuple[Block | None, Block | None],
        size_bytes: int,
        streams: tuple[Stream | None, Stream | None],
    ) -> Job:
        """Issue a transfer. It runs on the streams of both ends at once, as a peer copy does."""
        source, target = ends
        thread = self.thread
        host = thread.issuer(target if source == self.index_of_host else source, works=True)
        phase, layer, record = self._attribution(thread)
        read, written = blocks
        if read is not None:
            layer = read.write.layer or layer
            host.now_s = max(host.now_s, read.issued_s) if phase == "backward" else host.now_s
        thread.work(host, self._launch_s)
        job = Operation(source, target, size_bytes, what, layer, phase)
        tx, rx = streams
        if tx is not None and rx is not None:  # the copy occupies both streams: each waits for the other
            tx.wait(rx.record())
        sending = None if tx is None else Access(tx, tx.advance(host), what, layer)
        if tx is not None and rx is not None:
            rx.wait(tx.record())
        receiving = None if rx is None else Access(rx, rx.advance(host), what, layer)
        self._submit(job, host, tuple([stream for stream in streams if stream is not None]), record)
        if tx is not None and rx is not None:
            tx.wait(rx.record())
        if read is not None and sending is not None:
            read.read(sending)
        if written is not None and receiving is not None:
            written.written(receiving)
            if not self.cluster.ranks:  # else it was another rank's host
                written.issued_s = host.now_s
        return job

    def ends_s(self, job: Job) -> float:
        """When a job ends."""
        return self._clock.finish([job])

    def expect(self, tensor: torch.Tensor, source: int, target: int) -> None:
        """Take memory for a tensor that another process sends."""
        _, rx = self.transfer_streams(source, target)
        for block in self.allocate([tensor], target, rx, "a copy"):
            host = self.thread.issuer(target)
            block.written(Access(rx, rx.advance(host), "copy", self._attribution(self.thread)[1]))

    def arrival(self, ends: tuple[int, int], there_s: float) -> Event:
        """What another process sent arrives at a time."""
        _, rx = self.transfer_streams(*ends)
        job = Job(*ends, 0)
        job.start_s = job.over_s = job.end_s = there_s
        job.waiters = None
        return Event({**rx.seen, rx.number: rx.epoch}, (job,))

    def begin_sum(self, ring: Sequence[int], device: int, size_bytes: int, block: Block | None) -> Sum:
        """Issue the sum of what the devices of a ring have."""
        thread, names = self.thread, self.cluster.names
        host = thread.issuer(device, works=True)
        _, _, record = self._attribution(thread)
        thread.work(host, self._launch_s)
        stream = self._sums.setdefault(device, Stream(device, f"{names[device]}/sums"))
        compute = self.stream(device)
        compute.follow(host)
        event = compute.record()
        stream.wait(event)
        stream.awaited.clear()
        access = Access(stream, stream.advance(host), SUM, "")
        if block is not None:
            block.written(access)
        following = ring[(list(ring).index(device) + 1) % len(ring)]
        links = ring_links(self.cluster, [names[one] for one in ring])
        return Sum(
            Operation(device, following, size_bytes, SUM, SUM, "backward"),
            record,
            stream,
            access.epoch,
            max(host.now_s, self._clock.finish(event.jobs)),
            ring_s(links, size_bytes),
        )

    def end_sum(self, sum_: Sum) -> Event:
        """A sum runs; what comes after it waits for the event."""
        sum_.run()
        stream = sum_.stream
        return Event({**stream.seen, stream.number: sum_.epoch}, (sum_.job,))

    def begin_at(self, now_s: float) -> None:
        """The step that has just begun begins at a time at which all ranks are there."""
        self.thread.host.now_s = self._record.start_s = now_s
        self.allocator.restart_peaks()

    def _submit(self, job: Operation, host: Host, streams: tuple[Stream, ...], record: StepRecord) -> None:
        after: dict[Job, None] = {}
        for stream in streams:
            if stream.last is not None:
                after[stream.last] = None
            after.update(dict.fromkeys(stream.awaited))
            stream.awaited.clear()
            stream.last = job
        after.pop(job, None)
        record.jobs.append(job)
        self._clock.submit(job, host.now_s, after)
        if self._on_host and (job.device if job.target == COMPUTE else job.target) in self._on_host:
            host.now_s = max(host.now_s, self._clock.finish([job]))  # the host computes it itself
        if self._clock.untimed > _SETTLE_EVERY and not self.thread.in_backward:
            self._clock.settle(self.thread.host.now_s)

    def _described(self, what: str) -> str:
        layer = self._attribution(self.thread)[1]
        return f"{what} of layer {layer}" if layer else what

    def _issuer(self, device: int) -> Host:
        return self.thread.issuer(device)

    def _attribution(self, thread: Thread) -> tuple[Phase, str, StepRecord]:
        if thread.in_backward:
            layer, record = thread.owner()
            return "backward", layer, record or self._record
        return ("forward" if thread.depth else "other"), thread.layer, self._record

    def allocate(
        self, tensors: Iterable[torch.Tensor], device: int, stream: Stream, what: str
    ) -> list[Block]:
        """Count tensors that were made on a device; see `Allocator.allocate`."""
        return self.allocator.allocate(tensors, device, stream, lambda: self._described(what))

    def take_in(self, tensors: Iterable[torch.Tensor], device: int, what: str) -> None:
        """Give unplaced tensors to a device, which runs the kernels that made them."""
        for tensor in tensors:
            mark = mark_of(tensor)
            blocks = self.allocate([tensor], device, self.stream(device), what)
            for due in mark.due if mark is not None else ():
                if not due.charged:
                    due.charged = True
                    self.compute(device, due.name, [], blocks, due.work)

    @contextmanager
    def step(self) -> Iterator[StepRecord]:
        """A model is called: what runs from now on, until the next call, is noted in a new record."""
        self.raise_fault()
        if not self.thread.in_backward:
            self.thread.issuer(self.index_of_host)  # which takes in a backward that ended
            self.thread.meet()
        start_s = self._issuer(self.index_of_host).now_s
        self._finish_record()
        self.allocator.restart_peaks()
        self._record = self._record.next(start_s)
        self._worked.by_rank.clear()
        thread = self.thread
        thread.depth += 1
        try:
            yield self._record
        finally:
            thread.depth -= 1

    def timeline(self, record: StepRecord | None = None, *, by_operator: bool = False) -> Timeline:
        """What was measured since a step began; the host waits for all devices first."""
        self.synchronize()
        record = record or self._record
        if record is self._record:
            self._finish_record()
        timeline = record.timeline(by_operator=by_operator)
        if self._notes is None or record is not self._record:
            return timeline
        return self._notes.added_to(timeline, record.start_s)

    def _finish_record(self) -> None:
        self._record.peak_bytes = self.allocator.peak_bytes
        self._record.host_s = self._worked.seconds

    @property
    def begin_s(self) -> float:
        """When the step began."""
        return self._record.start_s

    def close(self) -> None:
        """The emulation is over: what was measured of it can still be read."""
        self.timeline()
        self.allocator.close()

    def raise_fault(self) -> None:
        """Raise what came in `__del__`, where it would be lost: a race, an exception of a handler."""
        fault, self.allocator.fault = self.allocator.fault, None
        if fault is not None:
            raise fault
