"""The devices and links of a pipeline at work: what a task waits for, and what its end sets off.

    task ends       ─▶ what follows on its device or by order alone; gradients are sent
    tensor is made  ─▶ it queues on its channel ─▶ on arrival, what waits for it

Which task a device begins next, and when, is left to those that build on this: list scheduling chooses, a
replay obeys a list.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import chain
from math import inf
from typing import Any

from baechi.cost.channel import Channels
from baechi.records.pipeline import Task
from baechi.simulate.pipeline.costs import PipelineCosts, Send
from baechi.simulate.pipeline.counting.again import Piece
from baechi.simulate.pipeline.unit_costs import UnitCosts

_END, _ARRIVAL, _WAKE, _UPLOAD, _MADE = range(5)


class AbstractPlay(ABC):
    """Tasks of m microbatches, on devices and links. Tasks are numbers: see `task_of`.

    Args:
        costs: of the pipeline.
        microbatches: how many.
        pieces: what runs again in backward on other devices than its stage's: units behind the stages.

    Attributes:
        start_s, end_s: by task; unset tasks never ran.
        missing: by task, how many things it waits for: ends, and the last of several transfers.
        sent: transfers as `(start, end, send, task that makes or first needs it)`.
    """

    def __init__(self, costs: PipelineCosts, microbatches: int, pieces: Sequence[Piece] = ()) -> None:
        self.costs, self.microbatches, self.units = costs, microbatches, costs.units
        units = costs.units
        self.runs, self.stages = len(units.stage_of_run), len(units.device_of) if units.training else 0
        self.width = self.runs + self.stages + len(pieces)
        self._of, self._pieces = UnitCosts(costs, microbatches, pieces), pieces
        self.device_of = self._of.device_of
        self.start_s = [-1.0] * (self.width * microbatches)
        self.end_s = [-1.0] * (self.width * microbatches)
        self.sent: list[tuple[float, float, Send, int]] = []
        self.idle = [True] * len(costs.cluster)
        self.now_s = 0.0
        self._channels = Channels(costs.cluster)
        self._own_channels = costs.cluster.reception == "free"
        self._heap: list[tuple[float, int, int, Any]] = []
        self._counter = 0
        self._duration_s, self._paced_s = self._of.duration_s, self._of.paced_s
        # from the second microbatch on, a task waits for that of the microbatch before as well
        missing = [0] * self.width
        for unit in (*chain(*self._of.followers), *[unit for unit, _ in self._of.arrivals]):
            missing[unit] += 1
        self.missing = missing + [count + 1 for count in missing] * (microbatches - 1)

    def task_of(self, number: int) -> Task:
        """The task of a number.

        Args:
            number: microbatch by microbatch, runs before stages.
        """
        microbatch, unit = divmod(number, self.width)
        if unit < self.runs:
            return Task("forward", microbatch, unit)
        stage = unit - self.runs
        return Task(
            "backward", microbatch, stage if stage < self.stages else self._pieces[stage - self.stages].stage
        )

    def number_of(self, task: Task) -> int:
        """The number of a task.

        Args:
            task: any task.
        """
        return task.microbatch * self.width + task.unit + (self.runs if task.phase == "backward" else 0)

    def channel_of(self, send: Send) -> int:
        """The channel that carries a transfer; each carries one at a time.

        Args:
            send: the transfer.
        """
        return self._channels.of(send.source, send.target)

    @abstractmethod
    def ready(self, number: int) -> None:
        """Note that a task has all that it waits for."""

    @abstractmethod
    def choose(self, device: int) -> int | None:
        """The task that an idle device begins now, if any."""

    def timed(self, number: int, over_s: float) -> None:
        """Note that it is known when a task is over.

        Args:
            number: the task.
            over_s: when its device is done with it, if it waits for nothing.
        """
        del number, over_s

    def ended(self, number: int) -> None:
        """Note that a task is over.

        Args:
            number: the task.
        """
        del number

    def tick(self) -> None:
        """Note that all that happens at a time has happened, before devices choose."""
        return

    def begin_all(self) -> None:
        """Tell which tasks wait for nothing, and let every device begin."""
        for number, missing in enumerate(self.missing):
            if not missing:
                self.ready(number)
        for device in range(len(self.idle)):
            self.wake(device, 0.0)

    def wake(self, device: int, time_s: float) -> None:
        """Let a device look for work at a time.

        Args:
            device: which one.
            time_s: when.
        """
        self._at(time_s, _WAKE, device)

    def meet(self, number: int) -> None:
        """One thing less for a task to wait for.

        Args:
            number: the task.
        """
        self.missing[number] -= 1
        if not self.missing[number]:
            self.ready(number)

    def arrived(self, number: int, early_s: float) -> None:
        """Something that a task reads has arrived.

        Args:
            number: the task.
            early_s: what the task takes of its device before it reads it.
        """
        del early_s
        self.meet(number)

    def wait_more(self, numbers: Iterable[int]) -> None:
        """One thing more for tasks to wait for, before they begin.

        Args:
            numbers: the tasks.
        """
        for number in numbers:
            self.missing[number] += 1

    def upload(self, microbatch: int, run: int) -> None:
        """Ask for what a run is the first to need from the host.

        Args:
            microbatch: of which microbatch.
            run: which run.
        """
        for send in self.costs.uploads[run]:
            self._send(self.now_s, microbatch * self.width + run, send, True)

    def upload_at(self, time_s: float, microbatch: int, run: int) -> None:
        """Ask for it at a time.

        Args:
            time_s: when.
            microbatch: of which microbatch.
            run: which run.
        """
        if self.costs.uploads[run]:
            self._at(time_s, _UPLOAD, (microbatch, run))

    def play(self) -> float:
        """Run until nothing moves.

        Returns:
            When the last task was over, and the last transfer.
        """
        heap, device_of = self._heap, self.device_of
        while heap:
            now_s = self.now_s = heap[0][0]
            awake: set[int] = set()
            while heap and heap[0][0] == now_s:
                _, kind, _, what = heappop(heap)
                if kind == _END:
                    self._end(what, awake)
                elif kind == _ARRIVAL:
                    base, send = what
                    for reader, early_s in zip(send.readers, send.early_s, strict=True):
                        number = base + reader
                        self.arrived(number, early_s)
                        awake.add(device_of[number % self.width])
                elif kind == _UPLOAD:
                    self.upload(*what)
                elif kind == _MADE:
                    self._send(now_s, *what)
                else:
                    awake.add(what)
            self.tick()
            for device in sorted(awake) if len(awake) > 1 else awake:
                if self.idle[device]:
                    self._try(device)
        return max([0.0, *self.end_s, *[end_s for _, end_s, *_ in self.sent]])

    def _try(self, device: int) -> None:
        number = self.choose(device)
        if number is not None:
            self.idle[device] = False
            self.begin(number)

    def begin(self, number: int) -> None:
        """Let a task begin now.

        Args:
            number: the task.
        """
        self.set_off(number, self.now_s)

    def set_off(self, number: int, start_s: float) -> None:
        """Let a task run from a time on, which may be past: nothing that it makes is there by now.

        Args:
            number: the task.
            start_s: when it starts.
        """
        begun_s, over_s = self.begun_s(number), start_s + self._duration_s[number]
        end_s = max(over_s, begun_s + self._paced_s[number])
        self.start_s[number] = start_s
        self._at(end_s, _END, number)
        self.timed(number, over_s)
        unit = number % self.width
        for send, last in self._of.before_end[unit]:
            made_s = max(self.now_s, min(end_s, max(over_s - send.rest_s, begun_s + send.paced_s)))
            if self._own_channels:  # until the task ends, no other one sends from its device
                self._send(made_s, number, send, last)
            else:
                self._at(made_s, _MADE, (number, send, last))

    def begun_s(self, number: int) -> float:
        """When the host began to issue a task; long ago where the host takes no time."""
        del number
        return -inf

    def _end(self, number: int, awake: set[int]) -> None:
        """Set off what follows a task; devices that may have work now are noted as awake."""
        microbatch, unit = divmod(number, self.width)
        self.end_s[number] = self.now_s
        device = self.device_of[unit]
        self.idle[device] = True
        awake.add(device)
        base = microbatch * self.width
        for follower in self._of.followers[unit]:
            self.meet(base + follower)
            awake.add(self.device_of[follower])
        if microbatch + 1 < self.microbatches:
            self.meet(number + self.width)
        for send, last in self._of.at_end[unit]:
            self._send(self.now_s, number, send, last)
        self.ended(number)

    def _send(self, ready_s: float, number: int, send: Send, last: bool) -> None:
        """Send a tensor; if it is the last that its readers wait for, they are told when it arrives."""
        start_s, end_s = self._channels.book(send.source, send.target, ready_s, send.duration_s)
        self.sent.append((start_s, end_s, send, number))
        if last:
            unit = number % self.width
            self._at(end_s, _ARRIVAL, (number - unit + self.runs * (unit >= self.runs), send))

    def _at(self, time_s: float, kind: int, what: object) -> None:
        self._counter += 1
        heappush(self._heap, (time_s, kind, self._counter, what))
