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

Where devices belong to ranks, each rank has a host, which goes through its own tasks of the list.
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
    """A list, replayed.

    Args:
        costs: of the pipeline.
        microbatches: how many.
        order: one list for the host, which can run.

    Attributes:
        makespan_s: from the first kernel or transfer, as steps are measured, until gradients are handed over.
        host_s: seconds of the host at work; of ranks, of the busiest one.
        issue_s: by position in the list, when the host began to issue it.
        jobs: by task, in the order of the list, when it runs.
        sent: transfers: when each travels, what it is, and the task that makes or first needs it.
    """

    def __init__(self, costs: PipelineCosts, microbatches: int, order: Sequence[Task]) -> None:
        self.costs, self.units = costs, costs.units
        self._runs = len(costs.forward_s)
        self.jobs: dict[Task, Job] = {}
        self.sent: list[tuple[Job, Send, Task]] = []
        self.issue_s: list[float] = []
        self._ranks = costs.cluster.ranks or (0,) * len(costs.cluster)
        self._now_s = [0.0] * (max(self._ranks) + 1)  # by rank, its host's clock
        self._worked_s = list(self._now_s)
        self._clock, self._at_work = Clock(Machine(costs.cluster)), units_at_work(costs)
        # by microbatch and unit: what must end before, and what may arrive on the way
        self._after: list[list[list[Job]]] = [[[] for _ in self._at_work] for _ in range(microbatches)]
        self._early: dict[tuple[int, int], list[tuple[Job, float]]] = {}
        self._issued: list[list[Job]] = [[] for _ in costs.cluster.devices]  # by device, its tasks
        self._newest: dict[int, Job] = {}  # by device, of its tasks and pieces
        for task in order:
            self._issue(task)
        self._clock.finish_all()
        free_s = [self._newest[n].end_s if n in self._newest else 0.0 for n in range(len(costs.cluster))]
        last_s = max([0.0, *free_s, *[job.end_s for job, *_ in self.sent]])
        over_s, worked_s = costs.closing.end_s(microbatches, self._now_s, free_s)
        self.host_s = max([sum(both) for both in zip(self._worked_s, worked_s, strict=True)])
        self.makespan_s = max(last_s, over_s) - costs.lead_s

    def _place(self, task: Task) -> int:
        """Its unit's: runs before stages."""
        return task.unit if task.phase == "forward" else self._runs + task.unit

    def _issue(self, task: Task) -> None:
        """Issue a task when its device is not too far behind, and wait for values for which the code asks."""
        costs, place = self.costs, self._place(task)
        unit = self._at_work[place]
        issued, rank = self._issued[unit.device], self._ranks[unit.device]
        if len(issued) >= AHEAD:
            self._wait(rank, [issued[-AHEAD]])
        now_s, taken_s = self._now_s[rank], unit.seconds[task.microbatch > 0].host_s
        first_s = now_s + min(costs.task_s + costs.cluster.launch_s, taken_s)
        self.issue_s.append(now_s)
        self._worked_s[rank] += taken_s
        self._now_s[rank] += taken_s
        for piece in unit.pieces:
            begun_s = now_s + costs.pieces[piece - len(self.units.unit_devices)].issued_s
            self._work(task, piece, begun_s, begun_s + costs.cluster.launch_s)
        for sending in unit.uploads:
            self._send(task, sending, first_s + costs.transfer_s)
        job = self.jobs[task] = self._work(task, place, now_s, first_s)
        issued.append(job)
        if place < self._runs:
            devices, own = costs.awaits[place]
            if own is not None:
                self._clock.finish([job])
                there_s = max(job.over_s - own.rest_s, now_s + own.paced_s)
                late_s = [other.end_s for other in job.early or ()]
                self._now_s[rank] = max([self._now_s[rank], there_s + own.issue_s, *late_s])
            self._wait(rank, [self._issued[device][-1] for device in devices if self._issued[device]])
        elif unit.fetches:
            sent = self.sent[-len(unit.at_end) :]
            self._wait(rank, [job, *[one for one, send, _ in sent if send.target == len(costs.cluster)]])

    def _wait(self, rank: int, jobs: Iterable[Job]) -> None:
        self._now_s[rank] = max(self._now_s[rank], self._clock.finish(jobs))

    def _work(self, task: Task, place: int, begun_s: float, first_s: float) -> Job:
        """Submit a task, or a piece of it, with what it sends."""
        unit, after = self._at_work[place], self._after[task.microbatch]
        seconds = unit.seconds[task.microbatch > 0]
        job = Job(unit.device, COMPUTE, seconds.work_s, begun_s + seconds.paced_s)
        if unit.device in self._newest:
            after[place].append(self._newest[unit.device])
        self._newest[unit.device] = job
        self._clock.submit(job, first_s, after[place], self._early.get((task.microbatch, place), ()))
        for follower in unit.followers:
            after[follower].append(job)
        for sending in unit.before_end:
            send = sending[0]
            self._send(task, sending, begun_s + send.paced_s, early=((job, send.rest_s),))
        for sending in unit.at_end:
            self._send(task, sending, begun_s, after=(job,))
        return job

    def _send(
        self,
        task: Task,
        sending: Sending,
        issued_s: float,
        after: Sequence[Job] = (),
        early: Sequence[tuple[Job, float]] = (),
    ) -> None:
        send, readers = sending
        job = Job(send.source, send.target, send.size_bytes)
        self._clock.submit(job, issued_s, after, early)
        self.sent.append((job, send, task))
        for place, early_s in readers:
            if early_s:
                self._early.setdefault((task.microbatch, place), []).append((job, early_s))
            else:
                self._after[task.microbatch][place].append(job)
