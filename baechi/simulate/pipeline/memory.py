"""How full each device is while the host goes through a pipeline's list.

Allocators that order memory by streams, as torch's, give memory out when the host asks, and take it back when
the host lets go of it. What other streams used, too (what was sent, what arrived), comes back when these are
over by the host's clock; or when the device would be full otherwise: then the allocator waits for them. So
the list alone decides what is needed, and times how full devices get that have room.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from baechi.records.pipeline import Task
from baechi.simulate.pipeline.costs import PipelineCosts
from baechi.simulate.pipeline.counting.notes import Changes
from baechi.simulate.pipeline.replay import Replay


@dataclass(frozen=True)
class PipelineMemory:
    """Bytes by device.

    Args:
        peak_bytes: the most, with the optimizer's step.
        curve: by device, `(position in the list, bytes)`: in the middle of a task, and after it.
    """

    peak_bytes: list[int]
    curve: list[list[tuple[int, int]]]


def memory_of(costs: PipelineCosts, order: Sequence[Task], replay: Replay) -> PipelineMemory:
    """Go through a list."""
    return _Ledger(costs, replay).walk(order)


def needed_bytes(costs: PipelineCosts, order: Sequence[Task]) -> list[int]:
    """By device, the most that a list needs: what other streams used comes back at once.

    It is more than a device has where the peak of `memory_of` is, whatever the times.
    """
    taken, runs = costs.bytes, len(costs.units.stage_of_run)
    live, peak = list(taken.always), [max(pair) for pair in zip(taken.always, taken.stepping, strict=True)]
    first, later = [
        [
            [(at, max(rise, net), net - late - sent) for at, rise, net, late, sent in changes]
            for changes in (*taken.forward, *backward)
        ]
        for backward in (taken.first_backward, taken.backward)
    ]
    for phase, microbatch, unit in order:
        for device, most, net in (later if microbatch else first)[
            unit if phase == "forward" else runs + unit
        ]:
            peak[device] = max(peak[device], live[device] + most)
            live[device] += net
    microbatches = 1 + max([task.microbatch for task in order], default=-1)
    for device, (returned, _) in enumerate(taken.returned):
        peak[device] = max(peak[device], live[device] + microbatches * returned)
    return peak


class _Ledger:
    def __init__(self, costs: PipelineCosts, replay: Replay) -> None:
        self._costs, self._units = costs, costs.units
        self._limits = [device.memory_bytes for device in costs.cluster.devices]
        self._live = list(costs.bytes.always)
        self._peak = [max(pair) for pair in zip(self._live, costs.bytes.stepping, strict=True)]
        self._curve = [[(0, live)] for live in self._live]
        self._position, self._now_s = 0, 0.0
        self._late: list[list[tuple[float, int]]] = [[] for _ in self._live]
        self._streams = _Streams(replay, len(self._live))

    def walk(self, order: Sequence[Task]) -> PipelineMemory:
        for position, task in enumerate(order):
            self._position = position
            self._now_s = self._streams.issue(position, task)
            self._change(self._changes(task))
        microbatches = 1 + max([task.microbatch for task in order], default=-1)
        for device, (returned, kept) in enumerate(self._costs.bytes.returned):
            self._come_back(device)
            self._add(device, microbatches * returned)  # what they are joined to, beside all of them
            self._add(device, -microbatches * (returned + kept))
        return PipelineMemory(self._peak, self._curve)

    def _changes(self, task: Task) -> Changes:
        taken = self._costs.bytes
        if task.phase == "forward":
            return taken.forward[task.unit]
        return (taken.backward if task.microbatch else taken.first_backward)[task.unit]

    def _come_back(self, device: int, now_s: float = float("inf")) -> None:
        late = self._late[device]
        while late and late[0][0] <= now_s:
            self._add(device, -heappop(late)[1])

    def _change(self, changes: Changes) -> None:
        for device, rise_bytes, net_bytes, late_bytes, sent_bytes in changes:
            self._come_back(device, self._now_s)
            if self._live[device] + rise_bytes > self._limits[device]:
                self._come_back(device)
            self._add(device, rise_bytes)
            self._add(device, net_bytes - rise_bytes)
            heappush(self._late[device], (self._streams.computed_s[device], late_bytes))
            heappush(self._late[device], (self._streams.sent_s[device], sent_bytes))

    def _add(self, device: int, size_bytes: int) -> None:
        if size_bytes:
            self._live[device] += size_bytes
            self._peak[device] = max(self._peak[device], self._live[device])
            self._curve[device].append((self._position, self._live[device]))


class _Streams:
    """When devices are done with all that was issued so far.

    Args:
        replay: the times of tasks and transfers.
        devices: how many there are.

    Attributes:
        computed_s: by device, when its kernels are over.
        sent_s: by device, when these and all that it sends are over.
    """

    def __init__(self, replay: Replay, devices: int) -> None:
        self._replay = replay
        self.computed_s, self.sent_s = [0.0] * devices, [0.0] * devices
        self._sent: dict[Task, list[tuple[int, float]]] = {}
        for job, send, maker in replay.sent:
            if send.source < devices:
                self._sent.setdefault(maker, []).append((send.source, job.end_s))

    def issue(self, position: int, task: Task) -> float:
        """Issue a task; returns the time at which the host comes to its first kernel."""
        device = self._replay.units.device(task)
        self.computed_s[device] = self._replay.jobs[task].end_s
        self.sent_s[device] = max(self.sent_s[device], self.computed_s[device])
        for source, end_s in self._sent.get(task, ()):
            self.sent_s[source] = max(self.sent_s[source], end_s)
        costs = self._replay.costs
        return self._replay.issue_s[position] + costs.task_s + costs.cluster.launch_s
