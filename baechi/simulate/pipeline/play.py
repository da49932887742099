"""The devices and links of a pipeline at work: what a task waits for, and what its end sets off.

    task ends       ─▶ what follows on its device or by order alone; gradients are sent
    tensor is made  ─▶ it queues on its channel ─▶ on arrival, what waits for it

Which task a device begins next, and when, is left to those that build on this: list scheduling chooses, a
replay obeys a list.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import inf

from baechi.cost.channel import Channels
from baechi.records.pipeline import Task
from baechi.records.pipeline.units import Direction
from baechi.simulate.pipeline.costs import PipelineCosts, Send
from baechi.simulate.pipeline.ways import waiting_for_ends

_END, _ARRIVAL, _WAKE, _UPLOAD, _MADE = range(5)


class AbstractPlay(ABC):
    """Tasks of m microbatches, on devices and links. Tasks are numbers: see `task_of`.

    Args:
        costs: of the pipeline.
        microbatches: how many.

    Attributes:
        start_s, end_s: by task; unset tasks never ran.
        sent: transfers as `(start, end, send, unit that makes or first needs it, microbatch, phase)`.
    """

    def __init__(self, costs: PipelineCosts, microbatches: int) -> None:
        self.costs, self.microbatches, self.units = costs, microbatches, costs.units
        units = costs.units
        self.runs, self.stages = len(units.stage_of_run), len(units.device_of) if units.training else 0
        self.width = self.runs + self.stages
        self.device_of = units.unit_devices
        self.start_s = [-1.0] * (self.width * microbatches)
        self.end_s = [-1.0] * (self.width * microbatches)
        self.sent: list[tuple[float, float, Send, int, int, Direction]] = []
        self.idle = [True] * len(costs.cluster)
        self.now_s = 0.0
        self._channels = Channels(costs.cluster)
        self._heap: list[tuple[float, int, int, object]] = []
        self._counter = 0
        self._duration_s = [*costs.forward_s, *costs.backward_s][: self.width]
        self._followers = waiting_for_ends(costs)
        # from the second microbatch on, a task waits for that of the microbatch before as well
        missing = _missing(costs, self._followers)
        self._missing = missing + [count + 1 for count in missing] * (microbatches - 1)

    def task_of(self, number: int) -> Task:
        """The task of a number.

        Args:
            number: microbatch by microbatch, runs before stages.
        """
        microbatch, unit = divmod(number, self.width)
        if unit < self.runs:
            return Task("forward", microbatch, unit)
        return Task("backward", microbatch, unit - self.runs)

    def number_of(self, task: Task) -> int:
        """The number of a task.

        Args:
            task: any task.
        """
        return task.microbatch * self.width + task.unit + (self.runs if task.phase == "backward" else 0)

    @abstractmethod
    def ready(self, number: int) -> None:
        """Note that a task has all that it waits for."""

    @abstractmethod
    def choose(self, device: int) -> int | None:
        """The task that an idle device begins now, if any."""

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
        for number, missing in enumerate(self._missing):
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
        self._missing[number] -= 1
        if not self._missing[number]:
            self.ready(number)

    def wait_more(self, numbers: Iterable[int]) -> None:
        """One thing more for tasks to wait for, before they begin.

        Args:
            numbers: the tasks.
        """
        for number in numbers:
            self._missing[number] += 1

    def is_ready(self, number: int) -> bool:
        """Whether a task has all that it waits for."""
        return not self._missing[number]

    def upload(self, microbatch: int, run: int) -> None:
        """Ask for what a run is the first to need from the host.

        Args:
            microbatch: of which microbatch.
            run: which run.
        """
        for send in self.costs.uploads[run]:
            self._send(send, run, microbatch, "forward")

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
        heap = self._heap
        while heap:
            self.now_s = heap[0][0]
            awake: set[int] = set()
            while heap and heap[0][0] == self.now_s:
                _, kind, _, what = heappop(heap)
                if kind == _END:
                    self._end(what, awake)  # type: ignore[arg-type]
                elif kind == _ARRIVAL:
                    for number in what:  # type: ignore[attr-defined]
                        self.meet(number)
                        awake.add(self.device_of[number % self.width])
                elif kind == _UPLOAD:
                    self.upload(*what)  # type: ignore[misc]
                elif kind == _MADE:
                    self._send(*what)  # type: ignore[misc]
                else:
                    awake.add(what)  # type: ignore[arg-type]
            self.tick()
            for device in sorted(awake):
                if self.idle[device]:
                    self._try(device)
        return max([0.0, *self.end_s, *[end_s for _, end_s, *_ in self.sent]])

    def _try(self, device: int) -> None:
        number = self.choose(device)
        if number is None:
            return
        self.idle[device] = False
        unit = number % self.width
        duration_s = self._duration_s[unit]
        if unit >= self.runs and number >= self.width:
            duration_s += self.costs.add_s[unit - self.runs]
        self.start_s[number], begun_s, end_s = self.now_s, self.begun_s(number), self.now_s + duration_s
        if begun_s > -inf:
            end_s = max(end_s, begun_s + self._paced_s(number, unit))
        self._at(end_s, _END, number)
        for send in self.costs.sends_before_end[unit] if unit < self.runs else ():
            made_s = max(self.now_s + duration_s - send.rest_s, begun_s + send.paced_s)
            self._at(min(made_s, end_s), _MADE, (send, unit, number // self.width, "forward"))

    def begun_s(self, number: int) -> float:
        """When the host began to issue a task; long ago where the host takes no time."""
        del number
        return -inf

    def _paced_s(self, number: int, unit: int) -> float:
        if unit < self.runs:
            return self.costs.paced_forward_s[unit]
        paced_s = self.costs.paced_adding_s if number >= self.width else self.costs.paced_backward_s
        return paced_s[unit - self.runs]

    def _end(self, number: int, awake: set[int]) -> None:
        """Set off what follows a task; devices that may have work now are noted as awake."""
        microbatch, unit = divmod(number, self.width)
        self.end_s[number] = self.now_s
        device = self.device_of[unit]
        self.idle[device] = True
        awake.add(device)
        base = microbatch * self.width
        for follower in self._followers[unit]:
            self.meet(base + follower)
            awake.add(self.device_of[follower])
        if microbatch + 1 < self.microbatches:
            self.meet(number + self.width)
        if unit < self.runs:
            for send in self.costs.sends_at_end[unit]:
                self._send(send, unit, microbatch, "forward")
        else:
            for send in self.costs.returns[unit - self.runs]:
                self._send(send, unit - self.runs, microbatch, "backward")
        self.ended(number)

    def _send(self, send: Send, unit: int, microbatch: int, phase: Direction) -> None:
        start_s, end_s = self._channels.book(send.source, send.target, self.now_s, send.duration_s)
        self.sent.append((start_s, end_s, send, unit, microbatch, phase))
        base = microbatch * self.width + (0 if phase == "forward" else self.runs)
        self._at(end_s, _ARRIVAL, [base + reader for reader in send.readers])

    def _at(self, time_s: float, kind: int, what: object) -> None:
        self._counter += 1
        heappush(self._heap, (time_s, kind, self._counter, what))


def _missing(costs: PipelineCosts, at_once: Sequence[Sequence[int]]) -> list[int]:
    """By unit, how many things it waits for in its microbatch: ends and transfers."""
    missing, runs = [0] * len(at_once), len(costs.forward_s)
    for followers in at_once:
        for follower in followers:
            missing[follower] += 1
    for sends in (*costs.sends, *costs.uploads):
        for send in sends:
            for run in send.readers:
                missing[run] += 1
    for sends in costs.returns if costs.units.training else ():
        for send in sends:
            missing[runs + send.readers[0]] += 1
    return missing


def lines_of(play: AbstractPlay, started: Sequence[int]) -> list[list[Task]]:
    """By device, its tasks in the order in which they started.

    Args:
        play: what has run.
        started: tasks by start.
    """
    lines: list[list[Task]] = [[] for _ in play.idle]
    for number in started:
        lines[play.device_of[number % play.width]].append(play.task_of(number))
    return lines
