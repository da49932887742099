"""What the end of a step waited for, and where another order of a device would change that.

    the last end ◀─ its device was busy ◀─ a transfer arrived ◀─ its channel was busy ◀─ ...

A step gets shorter only if on such a way a task comes before another one that kept its device busy
(job shops: Balas 1969; Nowicki and Smutnicki 1996).
"""

from baechi.cost.channel import Channels
from baechi.cost.clock import COMPUTE, Job
from baechi.records.pipeline import Task
from baechi.simulate.pipeline.replay import Replay


def busy_before(replay: Replay) -> dict[Task, Task]:
    """Tasks for which the end of the step waits, and which waited for their device.

    Args:
        replay: a list, replayed.

    Returns:
        By such a task, the one for which it waited; the later ones of the step first.
    """
    jobs, queued = replay.jobs, _queued(replay)
    last_s = max([job.end_s for job in jobs.values()])
    waiting = [task for task, job in jobs.items() if job.end_s == last_s]
    found, seen = dict[Task, Task](), set[Task]()
    while waiting:
        task = waiting.pop()
        if task in seen:
            continue
        seen.add(task)
        own = jobs[task]
        for job in replay.waits_of(task):
            if own.may_start_s(job) != own.start_s:
                continue
            while job in queued:
                job = queued[job]
            maker = replay.maker_of(job)
            if job.device == own.device and job is jobs[maker]:
                found[task] = maker
            if job.target == COMPUTE or job.device < len(replay.costs.cluster):
                waiting.append(maker)
    return found


def _queued(replay: Replay) -> dict[Job, Job]:
    """Transfers that waited for their channel, and the one before each."""
    channels, last, found = Channels(replay.costs.cluster), dict[int, Job](), dict[Job, Job]()
    for job in sorted([job for job, _, _ in replay.sent], key=lambda job: job.start_s):
        channel = channels.of(job.device, job.target)
        if job.ready_s < job.start_s and channel in last:
            found[job] = last[channel]
        last[channel] = job
    return found
