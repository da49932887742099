"""A pipeline's list as the host goes through it: when each task is issued, starts and ends.

The host takes the tasks one after the other. Where the code asks for values of a device, it waits until all
that was issued there before is over, and then goes on with the task. It is never more than a few ahead of a
device, so that memory of tasks that are far from running is not taken. A task starts when its first kernel
was issued, its device is free and what it reads first has arrived. What its later layers read may arrive
later: then it starts late enough to go through without a pause. It ends no sooner than its last kernel was
issued, nor sooner than if its device had waited for the host alone.
"""

from collections.abc import Sequence

from baechi.records.pipeline import Task
from baechi.simulate.pipeline.costs import PipelineCosts
from baechi.simulate.pipeline.play import AbstractPlay
from baechi.simulate.pipeline.ways import by_task

AHEAD = 3
"""So many tasks of a device may be issued and not over."""


class Replay(AbstractPlay):
    """A list, replayed.

    Args:
        costs: of the pipeline.
        microbatches: how many.
        order: one list for the host, which can run.

    Attributes:
        makespan_s: from the first kernel or transfer, as steps are measured, until gradients are handed over.
        host_s: seconds of the host at work.
        order: the list, as numbers of tasks.
        issue_s: by position in the list, when the host began to issue it.
        held_s: by task that started late, when the last of what it waited for arrived.
    """

    def __init__(self, costs: PipelineCosts, microbatches: int, order: Sequence[Task]) -> None:
        super().__init__(costs, microbatches, costs.pieces)
        self.order = [self.number_of(task) for task in order]
        host_s = by_task(
            [*costs.host_forward_s, *costs.host_backward_s], costs.add_host_s, self.units, microbatches
        )
        self._host_s = self._of.by_task(
            host_s, *[[0.0] * len(costs.pieces)] * 2
        )  # a part of their backwards'
        self._pieces_of: dict[int, list[int]] = {}
        for place, piece in enumerate(costs.pieces, start=self.runs + self.stages):
            self._pieces_of.setdefault(self.runs + piece.stage, []).append(place)
        self._before_s = costs.task_s + costs.cluster.launch_s
        self._queues: list[list[int]] = [[] for _ in self.idle]
        self._heads = [0] * len(self.idle)
        self._open = [0] * len(self.idle)
        late = [0] * self.width
        for unit, early_s in self._of.arrivals:
            late[unit] += early_s > 0
        self._late = late * microbatches
        self._pausing: dict[int, float] = {}
        self.held_s: dict[int, float] = {}
        self._issued: dict[int, tuple[float, float]] = {}
        self._next = 0
        self._awaited: set[int] = set()
        self._asking: int | None = None
        self._fetching: int | None = None
        host = len(costs.cluster)
        self._fetched = [any([send.target == host for send in sends]) for sends in costs.returns]
        self._host_free_s = 0.0
        self.host_s = 0.0
        self.issue_s: list[float] = []
        self.begin_all()
        self.makespan_s = self._close(self.play())

    def _close(self, end_s: float) -> float:
        free_s = [0.0] * len(self.idle)
        for number, task_end_s in enumerate(self.end_s):
            device = self.device_of[number % self.width]
            free_s[device] = max(free_s[device], task_end_s)
        over_s, worked_s = self.costs.closing.end_s(self.microbatches, self._host_free_s, free_s)
        self.host_s += worked_s
        return max(end_s, over_s) - self.costs.lead_s

    def ready(self, number: int) -> None:
        """Nothing to note: the head of a queue is asked."""

    def choose(self, device: int) -> int | None:
        """The next in the queue, if it was issued and all that it reads first is there."""
        queue, head = self._queues[device], self._heads[device]
        if head == len(queue):
            return None
        number = queue[head]
        if self.missing[number] > self._late[number] or self._issued[number][1] > self.now_s:
            return None
        self._heads[device] += 1
        return number

    def timed(self, number: int, over_s: float) -> None:
        """The host gets the value that it waits for in this task, and issues what is left of it."""
        if number != self._asking:
            return
        self._asking = None
        unit = number % self.width
        rest = self.costs.awaits[unit].own
        assert rest is not None
        there_s = max(over_s - rest.rest_s, self.begun_s(number) + rest.paced_s)
        self._host_free_s = max(self._host_free_s, there_s + rest.issue_s)
        self.wake(self.device_of[unit], max(self.now_s, self._host_free_s))

    def begin(self, number: int) -> None:
        """Begin a task; how late it started is known when all that it reads is there."""
        if self.missing[number]:
            self._pausing[number] = self.now_s
        else:
            super().begin(number)

    def arrived(self, number: int, early_s: float) -> None:
        """Something that a task reads has arrived; it may have begun before."""
        super().arrived(number, early_s)
        self._late[number] -= early_s > 0
        start_s = self._pausing.get(number)
        if start_s is None:
            return
        if self.now_s - early_s > start_s:
            self._pausing[number] = self.now_s - early_s
            self.held_s[number] = self.now_s
        if not self.missing[number]:
            self.set_off(number, self._pausing.pop(number))

    def ended(self, number: int) -> None:
        """A task less that is issued and not over; the host may wait for gradients that it sent home."""
        unit = number % self.width
        device = self.device_of[unit]
        self._open[device] -= unit < self.runs + self.stages
        if number == self._fetching:
            host = len(self.costs.cluster)
            there_s = [
                end_s for _, end_s, send, maker in self.sent if maker == number and send.target == host
            ]
            self._fetching = None
            self._host_free_s = max(self._host_free_s, *there_s)
            self.wake(device, max(self.now_s, self._host_free_s))

    def begun_s(self, number: int) -> float:
        """When the host began to issue it."""
        return self._issued[number][0]

    def tick(self) -> None:
        """Let the host go on until it is busy, or too far ahead of the next task's device."""
        while self._next < len(self.order) and self._host_free_s <= self.now_s:
            number = self.order[self._next]
            microbatch, unit = divmod(number, self.width)
            device = self.device_of[unit]
            waits = self._asking is not None or self._fetching is not None
            waits = waits or any([self._open[one] for one in self._awaited])
            if waits or self._open[device] >= AHEAD:
                return
            taken_s = self._host_s[number]
            first_s = self.now_s + min(self._before_s, taken_s)
            self._issued[number] = (self.now_s, first_s)
            self._host_free_s = self.now_s + taken_s
            self.host_s += taken_s
            self.issue_s.append(self.now_s)
            self._open[device] += 1
            self._next += 1
            self._issue_pieces(number)
            self._queues[device].append(number)
            self._awaited = set()
            if unit < self.runs:
                self._awaited, rest = self.costs.awaits[unit]
                self._asking = None if rest is None else number
                self.upload_at(first_s + self.costs.transfer_s, microbatch, unit)
            elif self._fetched[unit - self.runs]:
                self._fetching = number
            self.wake(device, first_s)
            if self._host_free_s > self.now_s:
                self.wake(device, self._host_free_s)

    def _issue_pieces(self, number: int) -> None:
        """Issue what runs again elsewhere in a task."""
        unit = number % self.width
        for place in self._pieces_of.get(unit, ()):
            piece = self.costs.pieces[place - self.runs - self.stages]
            first_s = self.now_s + piece.issued_s + self.costs.cluster.launch_s
            self._issued[number - unit + place] = (self.now_s + piece.issued_s, first_s)
            self._queues[piece.device].append(number - unit + place)
            self.wake(piece.device, first_s)
