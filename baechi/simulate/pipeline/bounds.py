"""A time that no order of a pipeline can beat, whatever the memory.

- way: the longest way through the step, with devices and links always free for it. What a unit sends to a
  device goes one after the other, though;
- host: it issues all tasks; that of a rank, the rank's;
- end: what follows the tasks begins when the host, and each device, is done with them (`closed_s`);
- device, channel: it takes one task or tensor at a time. Each comes after its longest way from the begin, and
  before its longest way to the end. Were they interruptible, the one with the longest way to the end would
  always go first, and that is easily computed (Jackson 1955; Carlier 1982, "The one-machine sequencing
  problem").

For a chain without transfers the device's is the bound of the literature, max over stages of
`sum of f before + m (f + b) + sum of b before`.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from baechi.cost.channel import Channels
from baechi.simulate.pipeline.costs import PipelineCosts, Send
from baechi.simulate.pipeline.ways import Ways, ways

Job = tuple[float, float, float]
"""Seconds before something, of it, and after it."""


def shortest_pipeline_s(
    costs: PipelineCosts, microbatches: int, *, in_turn: bool = True, closed: bool = True
) -> float:
    """A time that no order can beat, whatever the memory.

    Args:
        costs: of the pipeline.
        microbatches: how many.
        in_turn: whether transfers of a unit to a device go one after the other.
        closed: whether what follows the tasks counts.

    Returns:
        Seconds.
    """
    found = ways(costs, microbatches, in_turn=in_turn)
    devices: list[list[Job]] = [[] for _ in costs.cluster.devices]
    for device, job in _tasks(costs, found):
        devices[device].append(job)
    channels: dict[int, list[Job]] = {}
    for channel, job in _transfers(costs, microbatches, found):
        channels.setdefault(channel, []).append(job)
    free_s = [one_machine_s([(before_s, own_s, 0.0) for before_s, own_s, _ in jobs]) for jobs in devices]
    ways_s = [head_s + tail_s for head_s, tail_s in zip(found.heads_s, found.tails_s, strict=True)]
    last_s = max([0.0, *ways_s, *map(one_machine_s, [*devices, *channels.values()])])
    if not closed:
        return max(last_s, max(_hosts_s(costs, microbatches)) - costs.lead_s)
    return closed_s(costs, microbatches, last_s, free_s)


def closed_s(costs: PipelineCosts, microbatches: int, last_s: float, free_s: Sequence[float]) -> float:
    """When a step is over at the earliest, with what follows the tasks.

    Args:
        costs: of the pipeline.
        microbatches: how many.
        last_s: when its last task or transfer is over.
        free_s: by device, when its last task is.

    Returns:
        Seconds from the first kernel or transfer on.
    """
    hosts_s = _hosts_s(costs, microbatches)
    over_s, _ = costs.closing.end_s(microbatches, hosts_s, [end_s + costs.lead_s for end_s in free_s])
    return max(last_s, over_s - costs.lead_s)


def _hosts_s(costs: PipelineCosts, microbatches: int) -> list[float]:
    """By rank, its host's time for all tasks."""
    ranks, where = costs.cluster.ranks or (0,) * len(costs.cluster), costs.units.unit_devices
    found_s, runs = [0.0] * (max(ranks) + 1), len(costs.host_forward_s)
    for run, each_s in enumerate(costs.host_forward_s):
        found_s[ranks[where[run]]] += microbatches * each_s
    stages = zip(costs.host_backward_s, costs.add_host_s, strict=True) if costs.units.training else ()
    for stage, (each_s, more_s) in enumerate(stages):
        found_s[ranks[where[runs + stage]]] += microbatches * each_s + (microbatches - 1) * more_s
    return found_s


def _tasks(costs: PipelineCosts, found: Ways) -> Iterator[tuple[int, Job]]:
    """Each task, with its device."""
    where = costs.units.unit_devices
    for number, own_s in enumerate(found.own_s):
        after_s = found.tails_s[number] - own_s
        yield where[number % len(where)], (found.heads_s[number], own_s, after_s)


def _transfers(costs: PipelineCosts, microbatches: int, found: Ways) -> Iterator[tuple[int, Job]]:
    """Each transfer, with its channel."""
    channels, runs = Channels(costs.cluster), len(costs.forward_s)
    width = len(found.own_s) // microbatches

    def of(sends: Sequence[Send], maker: int | None, offset: int) -> Iterator[tuple[int, Job]]:
        for send in sends:
            channel = channels.of(send.source, send.target)
            for base in [microbatch * width for microbatch in range(microbatches)]:
                made_s = 0.0
                if maker is not None:
                    made_s = found.heads_s[base + maker] + found.own_s[base + maker] - send.rest_s
                rests_s = [
                    found.tails_s[base + offset + reader] - early_s
                    for reader, early_s in zip(send.readers, send.early_s, strict=True)
                ]
                yield channel, (made_s, send.duration_s, max(rests_s, default=0.0))

    for run in range(runs):
        yield from of(costs.uploads[run], None, 0)
        yield from of(costs.sends[run], run, 0)
    for stage, sends in enumerate(costs.returns) if costs.units.training else ():
        yield from of(sends, runs + stage, runs)


def one_machine_s(jobs: list[Job]) -> float:
    """When the last job and what comes after it is over, if jobs can be interrupted."""
    waiting: list[list[float]] = []
    now_s = over_s = 0.0
    jobs = sorted(jobs)
    for number, (before_s, own_s, after_s) in enumerate(jobs):
        now_s = max(now_s, before_s)
        heappush(waiting, [-after_s, own_s])
        next_s = jobs[number + 1][0] if number + 1 < len(jobs) else float("inf")
        while waiting and now_s < next_s:
            taken_s = min(waiting[0][1], next_s - now_s)
            now_s += taken_s
            if taken_s < waiting[0][1]:
                waiting[0][1] -= taken_s
            else:
                over_s = max(over_s, now_s - heappop(waiting)[0])
    return over_s
