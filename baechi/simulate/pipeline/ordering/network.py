"""A step in microbatches as a network of tasks: schedules by priorities, from the begin or from the end.

    task ─▶ what reads it, after a transfer            task (microbatch k) ─▶ the same task of k + 1
    issue of each run, in the order of the code        over on a device ─▶ a microbatch more begins there

Links are delays here and the host takes no time, so a schedule is a draft: its order is replayed. Backwards
in time, the same network is scheduled from its end.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from baechi.simulate.pipeline.costs import PipelineCosts
from baechi.simulate.pipeline.replay import AHEAD
from baechi.simulate.pipeline.ways import by_task, fetched_s, followers_of, uploaded_s

_EVENT = -1
"""The device of what takes no time."""

_Arc = tuple[int, float]

Draft = tuple[float, list[float]]
"""When all is over, and when each task starts."""


class Network:
    """The tasks of a step, and what they wait for.

    Args:
        costs: of the pipeline.
        microbatches: how many.
        limits: by device, how many microbatches may be in flight.
    """

    def __init__(self, costs: PipelineCosts, microbatches: int, limits: Sequence[int]) -> None:
        units, device_of = costs.units, costs.units.unit_devices
        self._runs, self._devices = len(costs.forward_s), len(costs.cluster)
        self._width, self._microbatches = len(device_of), microbatches
        self.own_s = by_task([*costs.forward_s, *costs.backward_s], costs.add_s, units, microbatches)
        self.tasks = len(self.own_s)
        self._device = device_of * microbatches
        empty_s = [0.0] * (self._width - self._runs)
        outer_s = uploaded_s(costs), fetched_s(costs)
        self._outer_s = [[*own_s, *empty_s] * microbatches for own_s in outer_s]
        self._after: list[list[_Arc]] = [[] for _ in self.own_s]
        self._join_tasks(followers_of(costs))
        self._join_code()
        for device, limit in enumerate(limits):
            self._join_limit([unit for unit in range(self._width) if device_of[unit] == device], limit)
        self._before: list[list[_Arc]] = [[] for _ in self._after]
        for node, arcs in enumerate(self._after):
            for later, delay_s in arcs:
                self._before[later].append((node, delay_s))

    def justified(
        self, start_s: Sequence[float], back: Callable[..., Draft], forth: Callable[..., Draft]
    ) -> Draft:
        """Push a schedule's tasks to the end, the last first, and then to the begin again."""
        _, pushed_s = back(self._last_first(start_s), backwards=True)
        return forth(self._last_first(pushed_s))

    def _last_first(self, start_s: Sequence[float]) -> list[float]:
        pairs = zip(start_s, self.own_s, strict=False)
        return [-start - own for start, own in pairs]

    def dense(self, ranks: Sequence[float], *, backwards: bool = False) -> Draft:
        """A device that is idle begins the ready task of the least rank."""
        after, missing, early_s, outer_s = self._direction(backwards)
        ready: list[list[tuple[float, int]]] = [[] for _ in range(self._devices)]
        free_s, start_s, makespan_s = [0.0] * self._devices, [0.0] * len(missing), 0.0
        events = [(early_s[node], node) for node, count in enumerate(missing) if not count]
        heapify(events)  # a node that is ready, or the complement of a device that is free
        while events:
            now_s, awake = events[0][0], set()
            while events and events[0][0] <= now_s:
                _, what = heappop(events)
                if what < 0:
                    awake.add(~what)
                elif what < self.tasks:
                    heappush(ready[self._device[what]], (ranks[what], what))
                    awake.add(self._device[what])
                else:
                    self._leave(what, now_s, after, missing, early_s, events)
            for device in sorted(awake):
                if free_s[device] <= now_s and ready[device]:
                    _, node = heappop(ready[device])
                    start_s[node], end_s = now_s, now_s + self.own_s[node]
                    free_s[device] = end_s
                    heappush(events, (end_s, ~device))
                    makespan_s = max(makespan_s, end_s + outer_s[node])
                    self._leave(node, end_s, after, missing, early_s, events)
        return makespan_s, start_s[: self.tasks]

    def inserted(self, ranks: Sequence[float], *, backwards: bool = False) -> Draft:
        """One task after the other, the least rank first, takes the earliest gap on its device."""
        after, missing, early_s, outer_s = self._direction(backwards)
        busy: list[tuple[list[float], list[float]]] = [([], []) for _ in range(self._devices)]
        start_s, makespan_s = [0.0] * len(missing), 0.0
        ready = [(self._rank(ranks, node), node) for node, count in enumerate(missing) if not count]
        heapify(ready)
        while ready:
            _, node = heappop(ready)
            begin_s = end_s = early_s[node]
            if node < self.tasks:
                begins, ends = busy[self._device[node]]
                place, own_s = bisect_left(ends, begin_s), self.own_s[node]
                while place < len(begins) and begins[place] < begin_s + own_s:
                    begin_s = max(begin_s, ends[place])
                    place += 1
                end_s = begin_s + own_s
                begins.insert(place, begin_s)
                ends.insert(place, end_s)
                makespan_s = max(makespan_s, end_s + outer_s[node])
            start_s[node] = begin_s
            for later, delay_s in after[node]:
                early_s[later] = max(early_s[later], end_s + delay_s)
                missing[later] -= 1
                if not missing[later]:
                    heappush(ready, (self._rank(ranks, later), later))
        return makespan_s, start_s[: self.tasks]

    def _rank(self, ranks: Sequence[float], node: int) -> float:
        return ranks[node] if node < self.tasks else float("-inf")

    def _direction(self, backwards: bool) -> tuple[list[list[_Arc]], list[int], list[float], list[float]]:
        """Arcs, how many are missing by node, the earliest starts, and what comes after the last."""
        ahead, behind = (self._before, self._after) if backwards else (self._after, self._before)
        begin_s, rest_s = reversed(self._outer_s) if backwards else self._outer_s
        nothing_s = [0.0] * (len(ahead) - self.tasks)
        return ahead, [len(arcs) for arcs in behind], [*begin_s, *nothing_s], rest_s

    @staticmethod
    def _leave(
        node: int,
        end_s: float,
        after: Sequence[Sequence[_Arc]],
        missing: list[int],
        early_s: list[float],
        events: list[tuple[float, int]],
    ) -> None:
        for later, delay_s in after[node]:
            early_s[later] = max(early_s[later], end_s + delay_s)
            missing[later] -= 1
            if not missing[later]:
                heappush(events, (early_s[later], later))

    def _join_tasks(self, followers: Sequence[Sequence[_Arc]]) -> None:
        for node in range(self.tasks):
            base, unit = node - node % self._width, node % self._width
            self._after[node] += [(base + later, delay_s) for later, delay_s in followers[unit]]
            if node + self._width < self.tasks:
                self._after[node].append((node + self._width, 0.0))

    def _event(self) -> int:
        self._after.append([])
        return len(self._after) - 1

    def _join_code(self) -> None:
        """Runs are issued as the code comes to them, and when the same, `AHEAD` microbatches ago, is over."""
        for microbatch in range(self._microbatches):
            base, issued = microbatch * self._width, None
            for run in range(self._runs):
                event = self._event()
                if issued is not None:
                    self._after[issued].append((event, 0.0))
                if microbatch >= AHEAD:
                    self._after[base - AHEAD * self._width + run].append((event, 0.0))
                self._after[event].append((base + run, 0.0))
                issued = event
            if issued is not None:
                self._after[issued] += [(base + unit, 0.0) for unit in range(self._runs, self._width)]

    def _join_limit(self, units: Sequence[int], limit: int) -> None:
        """A microbatch begins on a device when the one `limit` before it is over there."""
        for microbatch in range(self._microbatches - limit):
            event = self._event()
            for unit in units:
                self._after[microbatch * self._width + unit].append((event, 0.0))
                self._after[event].append(((microbatch + limit) * self._width + unit, 0.0))
