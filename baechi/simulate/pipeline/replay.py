"""A pipeline's list as the host goes through it: when each task is issued, starts and ends.

    host     |F0 on a|F0 on b|F1 on a|...waits|F1 on b|       one list, never far ahead of a device
    a          [  F0  ][  F1  ]                               in the order of issue
    a > b              ─▶      ─▶                             on the channel, as they get ready
    b                     [  F0  ]  [  F1  ]

The host takes the tasks one after the other. Where the code asks for values of a device, it waits until all
that was issued there before is over, and then goes on with the task. It is never more than a few ahead of a
device, so that memory of tasks that are far from running is not taken. A task starts when its first kernel
was issued, its device is free and what it reads first has arrived. What its later layers read may arrive
later: then it starts late enough to go through without a pause. It ends no sooner than its last kernel was
issued, nor sooner than if its device had waited for the host alone.
"""

from collections.abc import Iterable, Sequence

from baechi.cost.clock import COMPUTE, Clock, Job
from baechi.cost.machine import Machine
from baechi.records.pipeline import Task
from baechi.simulate.pipeline.costs import PipelineCosts, Send
from baechi.simulate.pipeline.unit_costs import Sending, units_at_work

AHEAD = 3
"""So many tasks of a device may be issued and not over."""


class Replay:
    """A list, replayed. Tasks are numbers: microbatch by microbatch, runs before stages.

    Args:
        costs: of the pipeline.
        microbatches: how many.
        order: one list for the host, which can run.

    Attributes:
        makespan_s: from the first kernel or transfer, as steps are measured, until gradients are handed over.
        host_s: seconds of the host at work.
        issue_s: by position in the list, when the host began to issue it.
        jobs: by task, in the order of the list, when it runs.
        sent: transfers: when each travels, what it is, and the task that makes or first needs it.
    """

    def __init__(self, costs: PipelineCosts, microbatches: int, order: Sequence[Task]) -> None:
        self.costs, self.units = costs, costs.units
        self._runs, self._width = len(self.units.stage_of_run), len(self.units.unit_devices)
        self.jobs: dict[int, Job] = {}
        self.sent: list[tuple[Job, Send, int]] = []
        self.issue_s: list[float] = []
        self.host_s = self._now_s = 0.0
        self._clock, self._at_work = Clock(Machine(costs.cluster)), units_at_work(costs)
        # by microbatch and unit: what must end before, and what may arrive on the way
        self._after: list[list[list[Job]]] = [[[] for _ in self._at_work] for _ in range(microbatches)]
        self._early: dict[tuple[int, int], list[tuple[Job, float]]] = {}
        self._makers: list[int] = []  # by number of a job, its task
        self._issued: list[list[Job]] = [[] for _ in costs.cluster.devices]  # by device, its tasks
        self._newest: dict[int, Job] = {}  # by device, of its tasks and pieces
        for task in order:
            self._issue(self.number_of(task))
        self._clock.finish_all()
        free_s = [self._newest[n].end_s if n in self._newest else 0.0 for n in range(len(costs.cluster))]
        last_s = max([0.0, *free_s, *[job.end_s for job, *_ in self.sent]])
        over_s, worked_s = costs.closing.end_s(microbatches, self._now_s, free_s)
        self.host_s += worked_s
        self.makespan_s = max(last_s, over_s) - costs.lead_s

    @property
    def start_s(self) -> list[float]:
        """By task, when it starts."""
        return [self.jobs[number].start_s for number in range(len(self.jobs))]

    def number_of(self, task: Task) -> int:
        """The number of a task.

        Args:
            task: any task.
        """
        return task.microbatch * self._width + task.unit + (self._runs if task.phase == "backward" else 0)

    def task_of(self, number: int) -> Task:
        """The task of a number.

        Args:
            number: of any task.
        """
        microbatch, place = divmod(number, self._width)
        if place < self._runs:
            return Task("forward", microbatch, place)
        return Task("backward", microbatch, place - self._runs)

    def waits_of(self, number: int) -> list[Job]:
        """What a task waited for: that before it on its device, tasks on others, transfers.

        Args:
            number: of the task.
        """
        microbatch, place = divmod(number, self._width)
        return self._after[microbatch][place] + list(self.jobs[number].early or ())

    def maker_of(self, job: Job) -> int:
        """The task of a job: the task itself, or what makes or first needs a transfer.

        Args:
            job: any job.
        """
        return self._makers[job.number - 1]

    def _issue(self, number: int) -> None:
        """Issue a task when its device is not too far behind, and wait for values for which the code asks."""
        costs, (microbatch, place) = self.costs, divmod(number, self._width)
        unit = self._at_work[place]
        issued = self._issued[unit.device]
        if len(issued) >= AHEAD:
            self._wait([issued[-AHEAD]])
        now_s, taken_s = self._now_s, unit.seconds[microbatch > 0].host_s
        first_s = now_s + min(costs.task_s + costs.cluster.launch_s, taken_s)
        self.issue_s.append(now_s)
        self.host_s += taken_s
        self._now_s += taken_s
        for piece in unit.pieces:
            begun_s = now_s + costs.pieces[piece - self._width].issued_s
            self._work(number, piece, begun_s, begun_s + costs.cluster.launch_s)
        for sending in unit.uploads:
            self._send(number, sending, first_s + costs.transfer_s)
        job = self.jobs[number] = self._work(number, place, now_s, first_s)
        issued.append(job)
        if place < self._runs:
            devices, own = costs.awaits[place]
            if own is not None:
                self._clock.finish([job])
                there_s = max(job.over_s - own.rest_s, now_s + own.paced_s)
                late_s = [other.end_s for other in job.early or ()]
                self._now_s = max([self._now_s, there_s + own.issue_s, *late_s])
            self._wait([self._issued[device][-1] for device in devices if self._issued[device]])
        elif unit.fetches:
            home = [
                one for one, send, maker in self.sent if maker == number and send.target == len(costs.cluster)
            ]
            self._wait([job, *home])

    def _wait(self, jobs: Iterable[Job]) -> None:
        self._now_s = max(self._now_s, self._clock.finish(jobs))

    def _work(self, number: int, place: int, begun_s: float, first_s: float) -> Job:
        """Submit a task, or a piece of it, with what it sends."""
        microbatch = number // self._width
        unit, after = self._at_work[place], self._after[microbatch]
        seconds = unit.seconds[microbatch > 0]
        job = Job(unit.device, COMPUTE, seconds.work_s, begun_s + seconds.paced_s)
        if unit.device in self._newest:
            after[place].append(self._newest[unit.device])
        self._newest[unit.device] = job
        self._makers.append(number)
        self._clock.submit(job, first_s, after[place], self._early.get((microbatch, place), ()))
        for follower in unit.followers:
            after[follower].append(job)
        for sending in unit.before_end:
            send = sending[0]
            self._send(number, sending, begun_s + send.paced_s, early=((job, send.rest_s),))
        for sending in unit.at_end:
            self._send(number, sending, begun_s, after=(job,))
        return job

    def _send(
        self,
        number: int,
        sending: Sending,
        issued_s: float,
        after: Sequence[Job] = (),
        early: Sequence[tuple[Job, float]] = (),
    ) -> None:
        send, readers = sending
        job = Job(send.source, send.target, send.size_bytes)
        self._makers.append(number)
        self._clock.submit(job, issued_s, after, early)
        self.sent.append((job, send, number))
        microbatch = number // self._width
        for place, early_s in readers:
            if early_s:
                self._early.setdefault((microbatch, place), []).append((job, early_s))
            else:
                self._after[microbatch][place].append(job)
