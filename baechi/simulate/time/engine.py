"""The event loop of one phase: devices run their layers in order, and transfers overlap with them.

A heap of `(time, priority, counter, event)` as in SimPy. The counter breaks ties by order of entry, so
runs repeat exactly. At one time, ends come first (0), then transfers leave (1), then layers start (2):
so memory that is freed at a time can be allocated at that time.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf

from baechi.cost.machine import Machine
from baechi.simulate.time.host import ForwardHost, Issued
from baechi.simulate.time.transfers import Transfer
from baechi.simulate.time.watcher import Watcher


class Engine:
    """One phase, forward or backward.

    Args:
        seconds: by layer, how long it runs.
        issued: when the host has issued kernels and transfers.
        queues: by device, its layers in the order in which it runs them.
        transfers: the phase's transfers; of those ready at the same time, the first one listed queues first.
        machine: the compute engines of the devices, and the channels between them.
        watcher: is told of each start and end.
        host: issues more when values that it waits for are there; None if it never waits.
    """

    def __init__(
        self,
        seconds: Sequence[float],
        issued: Issued,
        queues: Sequence[Sequence[int]],
        transfers: Sequence[Transfer],
        machine: Machine,
        watcher: Watcher,
        host: ForwardHost | None = None,
    ) -> None:
        self.ran: list[tuple[int, float, float]] = []  # layer, start, end
        self.moved: list[tuple[int, float, float]] = []  # transfer, start, end
        self._seconds = seconds
        self._issued = issued
        self._queues = queues
        self.transfers = transfers
        self._machine = machine
        self._watcher = watcher
        self._host = host
        self._ended = [False] * len(seconds)
        self._heap: list[tuple[float, int, int, Callable[[float, int], None], int]] = []
        self._counter = 0
        self._next = [0] * len(queues)
        self._busy = [False] * len(queues)
        self._device = [0] * len(seconds)
        for device, queue in enumerate(queues):
            for layer in queue:
                self._device[layer] = device
        self._end_s = [0.0] * len(transfers)
        # By transfer: producers, and other things it waits for, that are not done. It is sent at 0.
        self._ungiven = [len(transfer.producers) for transfer in transfers]
        # By layer: inputs, and other transfers it waits for, that have not arrived. It may start at 0.
        self._missing = [0] * len(seconds)
        self._gives: list[list[int]] = [[] for _ in seconds]
        self._next_on_stream: dict[int, int] = {}
        for number, transfer in enumerate(transfers):
            for layer in transfer.consumers:
                self._missing[layer] += 1
            for layer in transfer.producers:
                self._gives[layer].append(number)
        self._follow_streams()

    def _follow_streams(self) -> None:
        """Add the waits that stream order causes: work on one stream runs in the order of issue."""
        for number, layer in self._issued.behind.items():
            self._ungiven[number] += 1
            self._gives[layer].append(number)
        for layers in self._issued.holds.values():
            for layer in layers:
                self._missing[layer] += 1
        last: dict[tuple[int, int], int] = {}
        for number in self._issued.sequence:
            # One copy stream for each pair of devices: a transfer waits for the one issued before it.
            pair = self.transfers[number].source, self.transfers[number].target
            if pair in last:
                self._next_on_stream[last[pair]] = number
                self._ungiven[number] += 1
            last[pair] = number

    def run(self, start_s: float) -> float:
        """Run the phase.

        Args:
            start_s: when it begins.

        Returns:
            When its last event is over.
        """
        now_s = start_s
        for number in [number for number, ungiven in enumerate(self._ungiven) if not ungiven]:
            self._give(start_s, number)
        for device in range(len(self._queues)):
            self._at(start_s, 2, self._start, device)
        while self._heap:
            now_s, _, _, event, subject = heappop(self._heap)
            event(now_s, subject)
        return now_s

    @property
    def stuck(self) -> list[int]:
        """The layers at which devices stopped for good; none if all orders together are topological."""
        return [queue[place] for queue, place in zip(self._queues, self._next, strict=True) if queue[place:]]

    def _at(self, time_s: float, priority: int, event: Callable[[float, int], None], subject: int) -> None:
        self._counter += 1
        heappush(self._heap, (time_s, priority, self._counter, event, subject))

    def _start(self, now_s: float, device: int) -> None:
        queue, place = self._queues[device], self._next[device]
        if self._busy[device] or place == len(queue) or self._missing[queue[place]]:
            return
        layer = queue[place]
        first_s, last_s = self._issued.layers[layer]
        if first_s > now_s:
            if first_s < inf:  # else when the host goes on
                self._at(first_s, 2, self._start, device)
            return
        self._busy[device] = True
        self._next[device] += 1
        work_s = self._seconds[layer]
        # a slow host bounds the end: the last kernel starts after its issue
        lasting_s = max(work_s, last_s + self._issued.last_parts[layer] * work_s - now_s)
        _, end_s = self._machine.compute(device, now_s, lasting_s)
        self.ran.append((layer, now_s, end_s))
        self._watcher.started(layer)
        self._at(end_s, 0, self._end, layer)

    def _end(self, now_s: float, layer: int) -> None:
        device = self._device[layer]
        self._busy[device] = False
        self._watcher.ended(layer)
        for number in self._gives[layer]:
            self._less_ungiven(now_s, number)
        self._at(now_s, 2, self._start, device)
        self._ended[layer] = True
        if self._host is not None and self._host.awaited == layer:
            self._go_on(now_s, self._host)

    def _go_on(self, now_s: float, host: ForwardHost) -> None:
        """The host has the values that it waited for, and issues what follows."""
        while host.awaited is not None and self._ended[host.awaited]:
            for what, number in host.go_on(now_s):
                if what == "launch":
                    self._at(now_s, 2, self._start, self._device[number])
                elif what == "depart" and not self._ungiven[number]:
                    self._give(now_s, number)

    def _give(self, now_s: float, number: int) -> None:
        transfer = self.transfers[number]
        if not transfer.travels:
            self._take(now_s, number)
            return
        asked_s = self._issued.transfers[number]
        if asked_s > now_s:
            if asked_s < inf:  # else when the host goes on
                self._at(asked_s, 0, self._give, number)
            return
        start_s, end_s = self._machine.send(transfer.source, transfer.target, now_s, transfer.size_bytes)
        self._end_s[number] = end_s
        self.moved.append((number, start_s, end_s))
        self._at(start_s, 1, self._leave, number)

    def _leave(self, now_s: float, number: int) -> None:
        del now_s
        self._watcher.left(self.transfers[number])
        self._at(self._end_s[number], 0, self._arrive, number)

    def _arrive(self, now_s: float, number: int) -> None:
        self._watcher.arrived(self.transfers[number])
        self._take(now_s, number)
        following = self._next_on_stream.get(number)
        if following is not None:
            self._less_ungiven(now_s, following)

    def _less_ungiven(self, now_s: float, number: int) -> None:
        self._ungiven[number] -= 1
        if self._ungiven[number] == 0:
            self._give(now_s, number)

    def _take(self, now_s: float, number: int) -> None:
        for layer in (*self.transfers[number].consumers, *self._issued.holds.get(number, ())):
            self._missing[layer] -= 1
            if self._missing[layer] == 0:
                self._at(now_s, 2, self._start, self._device[layer])
