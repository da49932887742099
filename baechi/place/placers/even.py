"""An even contiguous cut: stretches of the model of equal work, one for each device. A baseline.

It is what people do by hand. With n devices, the first n-th of the work goes to the first one, and so
on. It ignores transfers at the cuts and the speeds of devices. (`chain` looks at both.)
"""

from functools import partial

from baechi.place.ledger import Ledger, open_ledger
from baechi.place.listing.walk import best_fit, walk
from baechi.place.placers.rescue import rescue
from baechi.place.problem import ANYWHERE, Problem
from baechi.records import Cluster, LayerGraph, Plan


def even(graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
    """Cut the topological order into stretches of equal work; see `Placer`."""
    problem = Problem(graph, cluster, optimizer)
    ledger = open_ledger(problem)
    stuck = walk(problem, ledger, _Stretches(problem, ledger).choose)
    if stuck is not None:
        return rescue(problem, "even", stuck)
    return problem.plan("even", ledger.device_of, range(len(problem.indexed)))


class _Stretches:
    """Chooses the device of the next layer: the one whose n-th of the work has its group's middle."""

    def __init__(self, problem: Problem, ledger: Ledger) -> None:
        self._problem = problem
        self._ledger = ledger
        self._device = 0
        self._before_s = 0.0
        self._work_s = [
            sum([sum([row[layer] for row in problem.work_s]) for layer in members]) / len(problem.work_s)
            for members in problem.indexed.members
        ]
        loose = [work for work, pin in zip(self._work_s, problem.pins, strict=True) if pin == ANYWHERE]
        self._share_s = sum(loose) / len(problem.devices)

    def choose(self, layer: int) -> int | None:
        work_s = self._work_s[self._problem.indexed.group_of[layer]]
        middle_s = self._before_s + work_s / 2
        self._before_s += work_s
        while self._device < len(self._problem.devices):
            last = self._device == len(self._problem.devices) - 1
            in_its_share = last or middle_s <= (self._device + 1) * self._share_s
            if in_its_share and self._ledger.short_bytes(layer, self._device) <= 0:
                return self._device
            self._device += 1
        return best_fit(self._problem, partial(self._ledger.short_bytes, layer))
