"""Tasks and their issues by the host, and the least that comes before and after each.

    issue of a task ─▶ the task ─▶ what follows it, after a transfer
          │              └──────▶ the issue of the same unit, `AHEAD` microbatches later
          └▶ the issue of what the one list must name later; on one device its task comes later, too

Before a task comes at least what its device must do before it, one after the other, each after its own head.
When the host issues a task, all but `AHEAD - 1` of those that its device was given before are over. From the
end of the step, the same holds backwards.
"""

from bisect import insort
from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

from baechi.records.pipeline.dependencies import comes_after
from baechi.records.pipeline.units import Task
from baechi.simulate.pipeline.bounds import one_machine_s
from baechi.simulate.pipeline.costs import PipelineCosts
from baechi.simulate.pipeline.replay import AHEAD
from baechi.simulate.pipeline.ways import by_task, fetched_s, followers_of, uploaded_s

_Arcs = list[list[tuple[int, float]]]


class Frame(NamedTuple):
    """What each node is between.

    Args:
        heads_s: when it begins at the earliest.
        tails_s: what comes at least after its end.
        before: by node, the set of those before it, as bits.
    """

    heads_s: list[float]
    tails_s: list[float]
    before: list[int]


class Issued:
    """A step as a network: node `i` is a task by number, node `tasks + i` its issue.

    Args:
        costs: of the pipeline.
        microbatches: how many.

    Attributes:
        tasks: how many there are.
        own_s: by node, what it takes on its device, or of the host.
        on: by device, its tasks; then the host's issues.
    """

    def __init__(self, costs: PipelineCosts, microbatches: int) -> None:
        units, runs = costs.units, len(costs.forward_s)
        where, host = units.unit_devices, len(costs.cluster)
        width = len(where)
        self.tasks = width * microbatches
        self.own_s = [
            *by_task([*costs.forward_s, *costs.backward_s], costs.add_s, units, microbatches),
            *by_task([*costs.host_forward_s, *costs.host_backward_s], costs.add_host_s, units, microbatches),
        ]
        self._device = where * microbatches
        self._machine = [*self._device, *[host] * self.tasks]
        self.on = [[n for n, at in enumerate(self._machine) if at == one] for one in range(host + 1)]
        empty_s = [0.0] * (width - runs)
        self._first_s, self._last_s = [
            [*[*outer_s, *empty_s] * microbatches, *[0.0] * self.tasks]
            for outer_s in (uploaded_s(costs), fetched_s(costs, in_turn=True))
        ]
        self._arcs: _Arcs = [[] for _ in self.own_s]
        self._join(costs, width)
        self._join_issues(costs, microbatches, width)

    def frame(self, added: Mapping[int, set[int]]) -> Frame | None:
        """Heads and tails; None if some arcs make a circle.

        Args:
            added: more arcs: by node, those that begin after its end.
        """
        after = [arcs + [(later, 0.0) for later in added.get(n, ())] for n, arcs in enumerate(self._arcs)]
        order = _sorted(after)
        if order is None:
            return None
        back: _Arcs = [[] for _ in after]
        for node, arcs in enumerate(after):
            for later, delay_s in arcs:
                back[later].append((node, delay_s))
        before, behind = _reached(order, after), _reached(order[::-1], back)
        heads_s = self._walk(order, after, self._kin(before), self._first_s, forwards=True)
        tails_s = self._walk(order[::-1], back, self._kin(behind), self._last_s, forwards=False)
        return Frame(heads_s, tails_s, self._kin(before))

    def least_s(self, frame: Frame) -> float:
        """A time that no schedule within a frame can beat.

        Args:
            frame: heads and tails.
        """
        jobs = list(zip(frame.heads_s, self.own_s, frame.tails_s, strict=True))
        return max([*map(sum, jobs), *[one_machine_s([jobs[n] for n in nodes]) for nodes in self.on]])

    def _join(self, costs: PipelineCosts, width: int) -> None:
        followers = followers_of(costs, in_turn=True)
        for task in range(self.tasks):
            base, unit = task - task % width, task % width
            self._arcs[task] += [(base + later, delay_s) for later, delay_s in followers[unit]]
            if task + width < self.tasks:
                self._arcs[task].append((task + width, 0.0))
            if task + AHEAD * width < self.tasks:
                self._arcs[task].append((self.tasks + task + AHEAD * width, 0.0))

    def _join_issues(self, costs: PipelineCosts, microbatches: int, width: int) -> None:
        """A task begins with its first kernel, so it may begin before its issue is over."""
        kernel_s, runs = costs.task_s + costs.cluster.launch_s, len(costs.forward_s)

        def issue(task: Task) -> int:
            place = task.microbatch * width + task.unit + (runs if task.phase == "backward" else 0)
            return self.tasks + place

        for task in costs.units.tasks(microbatches):
            node = issue(task)
            self._arcs[node].append((node - self.tasks, min(0.0, kernel_s - self.own_s[node])))
            for earlier, _ in comes_after(costs.units, task):
                self._arcs[issue(earlier)].append((node, 0.0))

    def _kin(self, reached: Sequence[int]) -> list[int]:
        """By node, those on its side, on its own device also by the list alone."""
        tasks, low = self.tasks, (1 << self.tasks) - 1
        return [
            (bits | reached[tasks + n] >> tasks) & low if n < tasks else bits
            for n, bits in enumerate(reached)
        ]

    def _walk(
        self,
        order: Sequence[int],
        arcs: _Arcs,
        kin: Sequence[int],
        outer_s: Sequence[float],
        *,
        forwards: bool,
    ) -> list[float]:
        """The least before each node, each after all that it follows."""
        found_s, own_s = list(outer_s), self.own_s
        done: list[list[tuple[float, int]]] = [[] for _ in self.on]
        for node in order:
            machine = done[self._machine[node]]
            begin_s = max(found_s[node], self._in_turn_s(machine, kin[node]))
            if forwards and node >= self.tasks:
                device = done[self._device[node - self.tasks]]
                begin_s = max(begin_s, self._throttled_s(device, kin[node] >> self.tasks))
            elif not forwards and node < self.tasks:
                begin_s = max(begin_s, self._throttling_s(done[-1], node, kin[self.tasks + node]))
            found_s[node] = begin_s
            insort(machine, (begin_s, node))
            for later, delay_s in arcs[node]:
                found_s[later] = max(found_s[later], begin_s + own_s[node] + delay_s)
        return found_s

    def _in_turn_s(self, machine: Sequence[tuple[float, int]], kin: int) -> float:
        """When a machine is over with those of a set."""
        over_s = taken_s = 0.0
        for begin_s, node in reversed(machine):
            if kin >> node & 1:
                taken_s += self.own_s[node]
                if begin_s + taken_s > over_s:
                    over_s = begin_s + taken_s
        return over_s

    def _throttled_s(self, device: Sequence[tuple[float, int]], given: int) -> float:
        """When a device is over with all but `AHEAD - 1` of those that it was given."""
        over_s, taken_s, longest_s, count = 0.0, 0.0, [0.0] * (AHEAD - 1), 0
        for begin_s, node in reversed(device):
            if given >> node & 1:
                count += 1
                taken_s += self.own_s[node]
                if self.own_s[node] > longest_s[0]:
                    longest_s = sorted([*longest_s[1:], self.own_s[node]])
                if count >= AHEAD:
                    over_s = max(over_s, begin_s + taken_s - sum(longest_s))
        return over_s

    def _throttling_s(self, issues: Sequence[tuple[float, int]], task: int, later: int) -> float:
        """What follows a task at least: the issues of all but `AHEAD - 1` that its device is given later."""
        rests_s = [
            rest_s + self.own_s[node]
            for rest_s, node in issues
            if later >> node & 1 and self._device[node - self.tasks] == self._device[task]
        ]
        return nlargest(AHEAD, rests_s)[-1] if len(rests_s) >= AHEAD else 0.0


def _sorted(after: _Arcs) -> list[int] | None:
    """Nodes, each after all that it follows; None if there is a circle."""
    missing = [0] * len(after)
    for arcs in after:
        for later, _ in arcs:
            missing[later] += 1
    order = [node for node, count in enumerate(missing) if not count]
    for node in order:  # grows while it is walked
        for later, _ in after[node]:
            missing[later] -= 1
            if not missing[later]:
                order.append(later)
    return order if len(order) == len(after) else None


def _reached(order: Sequence[int], arcs: _Arcs) -> list[int]:
    """By node, those from which a way leads to it, as bits."""
    found = [0] * len(arcs)
    for node in order:
        bits = found[node] | 1 << node
        for later, _ in arcs[node]:
            found[later] |= bits
    return found
