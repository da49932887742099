"""Choose devices by an integer program, so that every device's memory suffices.

There is one variable for each bundle of groups b and device d: 1 if b lies on d. There is one for each
tensor t and device d: 1 if d needs a copy of t. With the bytes of `least_bytes`, on every device

    sum of kept x_b + sum of copies y_t + margin * top  <=  memory       when forward is over
    sum of always x_b + moment                          <=  memory       while one of its layers runs
    sum of (always + update) x_b                        <=  memory       when the optimizer steps
    sum of always x_b + 2 * largest update              <=  memory
    x_b - x_maker  <=  y_t      for each bundle that reads the tensor;   sum over devices of x_b = 1

No plan needs less. So if there is no solution without margin, and each group is a bundle of its own, no
plan fits. Copies in inference are freed again, and are left out. The margin is for bytes that the program
does not know: a fraction of the most that a group needs on top. The objective is few copies, but the
first solution is taken, since the simulator judges it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pulp

from baechi.cost.indexed_graph import FROM_HOST
from baechi.place.problem import ANYWHERE, Problem
from baechi.place.solver import integer_solver
from baechi.place.tight.bundles import Bundles

_WORK, _LEAST_NODES = 10_000, 2
"""Nodes of branch and bound, times variables."""

_Terms = list[tuple[pulp.LpVariable, float]]


class Packing(NamedTuple):
    """An answer of the program.

    Args:
        device_of: by group, its device; None if no answer was found.
        impossible: whether the solver proved that there is no answer.
    """

    device_of: tuple[int, ...] | None
    impossible: bool = False


class IntegerProgram:
    """The program of a problem.

    Args:
        problem: what is to be placed.
        bundles: the bundles of groups, and their bytes.
        memory_bytes: by device.
        margin: the fraction of the largest `top_bytes` that is left free on each device.
        copies: whether copies count.
    """

    def __init__(
        self,
        problem: Problem,
        bundles: Bundles,
        memory_bytes: Sequence[int],
        *,
        margin: float = 0.0,
        copies: bool = True,
    ) -> None:
        self._problem = problem
        self._bundles = bundles
        self._memory_bytes = memory_bytes
        self._unit = max([1, *memory_bytes])
        self._program = pulp.LpProblem("packing", pulp.LpMinimize)
        self._x = [
            {
                device: self._program.add_variable(f"x{bundle}_{device}", 0, 1, pulp.LpInteger)
                for device in problem.devices
                if self._may(bundle, device)
            }
            for bundle in range(len(bundles))
        ]
        for on in self._x:
            self._program += pulp.lpSum(on.values()) == 1
        there: list[_Terms] = self._copies() if copies else [[] for _ in problem.devices]
        for device in problem.devices:
            self._limit(device, there[device], margin)
        self._program += pulp.LpAffineExpression([term for terms in there for term in terms])

    def solve(self) -> Packing:
        """Solve it, within a number of steps."""
        if not all(self._x):
            return Packing(None, impossible=True)
        nodes = max(_LEAST_NODES, _WORK // self._program.numVariables())
        if self._program.solve(integer_solver(nodes)) == pulp.LpStatusInfeasible:
            return Packing(None, impossible=True)
        chosen = [{d: x.value() or 0.0 for d, x in on.items()} for on in self._x]
        if any(abs(max(values.values()) - 1.0) > 1e-3 for values in chosen):
            return Packing(None)  # stopped before there was a solution
        devices = [max(values, key=values.__getitem__) for values in chosen]
        return Packing(tuple([devices[bundle] for bundle in self._bundles.of_group]))

    def _may(self, bundle: int, device: int) -> bool:
        alone = self._bundles.least[bundle].alone_bytes
        return self._bundles.pins[bundle] in (ANYWHERE, device) and alone <= self._memory_bytes[device]

    def _limit(self, device: int, copies: _Terms, margin: float) -> None:
        """Add the constraints that a device's memory suffices."""
        least, limit = self._bundles.least, self._memory_bytes[device] / self._unit
        here = [(on[device], part) for on, part in zip(self._x, least, strict=True) if device in on]
        always = [(x, part.always_bytes / self._unit) for x, part in here]
        kept = [*copies, *((x, part.kept_bytes / self._unit) for x, part in here)]
        if margin:
            kept.append((self._most(f"t{device}", [(x, part.top_bytes) for x, part in here]), margin))
        self._program += pulp.LpAffineExpression(kept) <= limit
        moment = self._most(f"m{device}", [(x, part.moment_bytes) for x, part in here])
        self._program += pulp.LpAffineExpression([*always, (moment, 1.0)]) <= limit
        if any(part.gradient_bytes or part.update_bytes for _, part in here):
            trained = [(x, (part.always_bytes + part.gradient_bytes) / self._unit) for x, part in here]
            updates = [(x, part.update_bytes / self._unit) for x, part in here]
            largest = self._most(f"l{device}", [(x, part.largest_update_bytes) for x, part in here])
            self._program += pulp.LpAffineExpression([*trained, *updates]) <= limit
            self._program += pulp.LpAffineExpression([*trained, (largest, 2.0)]) <= limit

    def _most(self, name: str, sizes: list[tuple[pulp.LpVariable, int]]) -> pulp.LpVariable:
        """A variable that is at least the largest size of the chosen bundles."""
        most = self._program.add_variable(name, 0)
        for x, size in sizes:
            if size:
                self._program += pulp.LpAffineExpression([(most, 1.0), (x, -size / self._unit)]) >= 0
        return most

    def _copies(self) -> list[_Terms]:
        """By device, the bytes of copies that must be there when forward is over."""
        indexed, bundle_of = self._problem.indexed, self._bundles.of_layer
        copies: list[_Terms] = [[] for _ in self._problem.devices]
        for tensor, size in enumerate(indexed.size_bytes):
            maker = indexed.source[tensor]
            if not size or (maker != FROM_HOST and not self._problem.training):
                continue
            home = ANYWHERE if maker == FROM_HOST else bundle_of[maker]
            readers = sorted({bundle_of[reader] for reader in indexed.consumers[tensor]} - {home})
            for device in self._problem.devices:
                among = [self._x[bundle][device] for bundle in readers if device in self._x[bundle]]
                if among:
                    there = self._program.add_variable(f"y{tensor}_{device}", 0, 1)
                    copies[device].append((there, size / self._unit))
                    beside = [(self._x[home][device], 1.0)] if home >= 0 and device in self._x[home] else []
                    for x in among:
                        self._program += pulp.LpAffineExpression([(there, 1.0), (x, -1.0), *beside]) >= 0
        return copies
