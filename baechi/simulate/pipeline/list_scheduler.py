"""List scheduling: an idle device begins the task of the best rank among those that may begin.

    task ends       ─▶ what follows on its device or by order alone; gradients are sent
    tensor is made  ─▶ it queues on its channel ─▶ on arrival, what waits for it

A device may not begin a microbatch while as many as its limit are in flight there: begun, and not over. Each
unit takes the microbatches in their order, so the earliest in flight can always go on. The host takes no
time.
"""

from collections.abc import Sequence
from functools import cached_property
from heapq import heappop, heappush
from itertools import chain, pairwise
from typing import Any

from baechi.cost.channel import Channels
from baechi.records.pipeline import Task
from baechi.simulate.pipeline.bounds import closed_s
from baechi.simulate.pipeline.costs import PipelineCosts, Send
from baechi.simulate.pipeline.ways import arrivals_of, by_task, waiting_for_ends

_END, _ARRIVAL, _MADE = range(3)


class Listed:
    """A schedule by list scheduling. Tasks are numbers: microbatch by microbatch, runs before stages.

    Args:
        costs: of the pipeline.
        microbatches: how many.
        ranks: by task, what is compared; the least goes first.
        limits: by device, the microbatches that may be in flight.
        lines: by device, its tasks in a fixed order, in place of ranks and limits.
        in_code_order: whether a microbatch's runs begin in the order of the code, and backward after the last
            has begun. Then the tasks by start are a list that the host can obey.

    Attributes:
        makespan_s: when the last task was over, and the last transfer.
    """

    def __init__(
        self,
        costs: PipelineCosts,
        microbatches: int,
        ranks: Sequence[Any],
        limits: Sequence[int],
        lines: Sequence[Sequence[Task]] | None = None,
        *,
        in_code_order: bool = False,
    ) -> None:
        self._costs, self._microbatches = costs, microbatches
        self._ranks, self._limits, self._code = ranks, limits, in_code_order
        self._device_of, self._runs = costs.units.unit_devices, len(costs.forward_s)
        self._width = len(self._device_of)
        self._own_s = by_task([*costs.forward_s, *costs.backward_s], costs.add_s, costs.units, microbatches)
        self._followers = waiting_for_ends(costs)
        self._before_end, self._at_end, self._uploads = (
            costs.sends_before_end,
            costs.sends_at_end,
            costs.uploads,
        )
        self._behind: dict[int, int] = {}
        missing = [int(in_code_order)] * self._width
        for unit in (*chain(*self._followers), *[unit for unit, _ in arrivals_of(costs)]):
            missing[unit] += 1
        # from the second microbatch on, a task waits for that of the microbatch before as well
        self._missing = missing + [count + 1 for count in missing] * (microbatches - 1)
        for first in range(0, len(self._missing) if in_code_order else 0, self._width):
            self._missing[first] -= 1
        for line in lines or ():
            for earlier, later in pairwise(map(costs.units.number, line)):
                self._behind[earlier] = later
                self._missing[later] += 1
        self._now_s = self._arrived_s = 0.0
        self._start_s: dict[int, float] = {}
        self._channels, devices = Channels(costs.cluster), range(len(costs.cluster))
        self._heap: list[tuple[float, int, int, Any]] = []
        self._counter = 0
        self._ready: list[list[int]] = [[] for _ in devices]
        self._live: list[dict[int, int]] = [{} for _ in devices]  # by device, what is left of microbatches
        self._parts = [self._device_of.count(device) for device in devices]
        self._idle, self._awake = [True for _ in devices], set(devices)
        self._free_s = [0.0 for _ in devices]
        for number, count in enumerate(self._missing):
            if not count:
                self._ready[self._device_of[number % self._width]].append(number)
        for run in range(self._runs):
            self._upload(0, run)
        self._run()

    @property
    def is_complete(self) -> bool:
        """Whether every task ran."""
        return len(self._start_s) == len(self._missing)

    @cached_property
    def start_s(self) -> dict[Task, float]:
        """When each task starts, in this order; incomplete if fixed lines contradict each other."""
        task = self._costs.units.task
        return {task(number): begin_s for number, begin_s in self._start_s.items()}

    @property
    def step_s(self) -> float:
        """When all is over, with what follows the tasks."""
        return closed_s(self._costs, self._microbatches, self.makespan_s, self._free_s)

    @property
    def lines(self) -> list[list[Task]]:
        """By device, its tasks in order."""
        found: list[list[Task]] = [[] for _ in self._idle]
        for task in self.start_s:
            found[self._costs.units.device(task)].append(task)
        return found

    def _run(self) -> None:
        """Let all happen that happens at a time; then idle devices begin."""
        heap, happen = self._heap, (self._end, self._arrive, self._send)
        while True:
            while heap and heap[0][0] <= self._now_s:
                _, kind, _, what = heappop(heap)
                happen[kind](*what)
            while self._awake:  # what begins may wake others
                device = min(self._awake)
                self._awake.remove(device)
                if self._idle[device]:
                    self._begin_on(device)
            if not heap:
                self.makespan_s = max(self._now_s, self._arrived_s)
                return
            self._now_s = heap[0][0]

    def _begin_on(self, device: int) -> None:
        ready, live = self._ready[device], self._live[device]
        if len(live) >= self._limits[device]:
            ready = [number for number in ready if number // self._width in live]
        if not ready:
            return
        number = min(ready, key=self._ranks.__getitem__)
        self._ready[device].remove(number)
        microbatch, unit = divmod(number, self._width)
        live.setdefault(microbatch, self._parts[device])
        self._idle[device] = False
        self._start_s[number] = self._now_s
        end_s = self._now_s + self._own_s[number]
        self._at(end_s, _END, number)
        if unit < self._runs:
            for send, last in self._before_end[unit]:
                self._at(end_s - send.rest_s, _MADE, microbatch, unit, send, last)
            if microbatch + 1 < self._microbatches:
                self._upload(microbatch + 1, unit)
            if self._code:
                behind = [unit + 1] if unit + 1 < self._runs else range(self._runs, self._width)
                for other in behind:
                    self._meet(microbatch * self._width + other)

    def _end(self, number: int) -> None:
        microbatch, unit = divmod(number, self._width)
        device = self._device_of[unit]
        live = self._live[device]
        live[microbatch] -= 1
        if not live[microbatch]:
            del live[microbatch]
        self._idle[device] = True
        self._free_s[device] = self._now_s
        self._awake.add(device)
        for follower in self._followers[unit]:
            self._meet(microbatch * self._width + follower)
        if microbatch + 1 < self._microbatches:
            self._meet(number + self._width)
        if number in self._behind:
            self._meet(self._behind[number])
        for send, last in self._at_end[unit]:
            self._send(microbatch, unit, send, last)

    def _arrive(self, first: int, readers: Sequence[int]) -> None:
        for reader in readers:
            self._meet(first + reader)

    def _meet(self, number: int) -> None:
        """One thing less for a task to wait for."""
        self._missing[number] -= 1
        if not self._missing[number]:
            device = self._device_of[number % self._width]
            self._ready[device].append(number)
            self._awake.add(device)

    def _upload(self, microbatch: int, run: int) -> None:
        for send in self._uploads[run]:
            self._send(microbatch, run, send, True)

    def _send(self, microbatch: int, unit: int, send: Send, last: bool) -> None:
        """Send a tensor; if it is the last that its readers wait for, they are told when it arrives."""
        _, end_s = self._channels.book(send.source, send.target, self._now_s, send.duration_s)
        if last:
            first = microbatch * self._width + (self._runs if unit >= self._runs else 0)
            self._at(end_s, _ARRIVAL, first, send.readers)
        else:
            self._arrived_s = max(self._arrived_s, end_s)

    def _at(self, time_s: float, kind: int, *what: Any) -> None:
        self._counter += 1
        heappush(self._heap, (time_s, kind, self._counter, what))
