"""List scheduling: an idle device begins the task of the best rank among those that may begin.

A device may not begin a microbatch while as many as its limit are in flight there: begun, and not over. Each
unit takes the microbatches in their order, so the earliest in flight can always go on.
"""

from collections.abc import Sequence
from typing import Any

from baechi.records.pipeline import Task
from baechi.simulate.pipeline.costs import PipelineCosts
from baechi.simulate.pipeline.play import AbstractPlay


class _Listing(AbstractPlay):
    def __init__(
        self,
        costs: PipelineCosts,
        microbatches: int,
        ranks: Sequence[Any],
        limits: Sequence[int],
        lines: Sequence[Sequence[Task]] | None,
        *,
        in_code_order: bool,
    ) -> None:
        super().__init__(costs, microbatches)
        devices = len(self.idle)
        self.started: list[int] = []
        self._ranks, self._limits, self._code = ranks, limits, in_code_order
        self._lines = None if lines is None else [[self.number_of(task) for task in line] for line in lines]
        self._next = [0] * devices
        self._ready: list[list[int]] = [[] for _ in range(devices)]
        self._live: list[dict[int, int]] = [{} for _ in range(devices)]
        self._parts = [self.device_of.count(device) for device in range(devices)]
        if in_code_order:
            self._wait_for_code()
        for run in range(self.runs):
            self.upload(0, run)
        self.begin_all()

    def _wait_for_code(self) -> None:
        """A run waits for the begin of that before it in the code; backward, for the begin of the last."""
        for base in range(0, self.width * self.microbatches, self.width):
            self.wait_more(range(base + 1, base + self.width))

    def ready(self, number: int) -> None:
        self._ready[self.device_of[number % self.width]].append(number)

    def choose(self, device: int) -> int | None:
        ready, live = self._ready[device], self._live[device]
        if self._lines is not None:
            line, place = self._lines[device], self._next[device]
            if place >= len(line) or line[place] not in ready:
                return None
            number = line[place]
            self._next[device] += 1
        else:
            full = len(live) >= self._limits[device]
            open_ = [n for n in ready if not full or n // self.width in live] if full else ready
            if not open_:
                return None
            number = min(open_, key=self._ranks.__getitem__)
        ready.remove(number)
        self._begun(number, device)
        return number

    def _begun(self, number: int, device: int) -> None:
        microbatch, unit = divmod(number, self.width)
        self.started.append(number)
        self._live[device].setdefault(microbatch, self._parts[device])
        if unit < self.runs:
            if microbatch + 1 < self.microbatches:
                self.upload(microbatch + 1, unit)
            if self._code:
                behind = [unit + 1] if unit + 1 < self.runs else range(self.runs, self.width)
                for other in behind:
                    self.meet(microbatch * self.width + other)
                    self.wake(self.device_of[other], self.now_s)

    def ended(self, number: int) -> None:
        microbatch, unit = divmod(number, self.width)
        live = self._live[self.device_of[unit]]
        live[microbatch] -= 1
        if not live[microbatch]:
            del live[microbatch]


class Listed:
    """A schedule by list scheduling.

    Args:
        play: what has run.
        makespan_s: when the last task was over.
    """

    def __init__(self, play: _Listing, makespan_s: float) -> None:
        self.makespan_s = makespan_s
        self.is_complete = len(play.started) == play.width * play.microbatches
        self._play = play

    @property
    def started(self) -> list[Task]:
        """The tasks by start."""
        return [self._play.task_of(number) for number in self._play.started]

    @property
    def lines(self) -> list[list[Task]]:
        """By device, its tasks in order."""
        play = self._play
        lines: list[list[Task]] = [[] for _ in play.idle]
        for number in play.started:
            lines[play.device_of[number % play.width]].append(play.task_of(number))
        return lines

    @property
    def start_s(self) -> dict[Task, float]:
        """When each task starts."""
        return {self._play.task_of(n): self._play.start_s[n] for n in self._play.started}


def listed(
    costs: PipelineCosts,
    microbatches: int,
    ranks: Sequence[Any],
    limits: Sequence[int],
    lines: Sequence[Sequence[Task]] | None = None,
    *,
    in_code_order: bool = False,
) -> Listed:
    """Schedule the tasks of a step.

    Args:
        costs: of the pipeline.
        microbatches: how many.
        ranks: by task's number (see `AbstractPlay`), what is compared; the least goes first.
        limits: by device, the microbatches that may be in flight.
        lines: by device, its tasks in a fixed order, in place of ranks and limits.
        in_code_order: whether a microbatch's runs begin in the order of the code, and backward after the last
            has begun. Then the tasks by start are a list that the host can obey.

    Returns:
        The schedule; incomplete if fixed lines contradict each other.
    """
    play = _Listing(costs, microbatches, ranks, limits, lines, in_code_order=in_code_order)
    return Listed(play, play.play())
