"""The solver of linear and integer programs: HiGHS; if it is missing, CBC, which comes with PuLP."""

import functools
import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import pulp

logger = logging.getLogger(__name__)


Term = tuple[int, float]
"""A variable and its factor."""


class LinearProgram:
    """Variables with bounds, and sums of them that have a least value; the costs become as small as can be.

    It is handed over as it is: to describe it to PuLP first takes as long as to solve it.
    """

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._lowest: list[float] = []
        self._highest: list[float] = []
        self._least: list[float] = []
        self._begins: list[int] = []
        self._variables: list[int] = []
        self._factors: list[float] = []

    def variable(self, cost: float, lowest: float, highest: float = float("inf")) -> int:
        """Add a variable."""
        self._costs.append(cost)
        self._lowest.append(lowest)
        self._highest.append(highest)
        return len(self._costs) - 1

    def at_least(self, least: float, terms: Iterable[Term]) -> None:
        """Add a constraint: a sum is at least so much."""
        self._least.append(least)
        self._begins.append(len(self._variables))
        for variable, factor in terms:
            self._variables.append(variable)
            self._factors.append(factor)

    def solve(self) -> list[float]:
        """The values of all variables in a solution."""
        return self._by_highs() if _has_highs() else self._by_cbc()

    def _by_highs(self) -> list[float]:
        solver = _silent(threads=1)
        bounds = [np.array(values) for values in (self._costs, self._lowest, self._highest)]
        nothing = np.empty(0, np.int32)
        solver.addCols(len(self._costs), *bounds, 0, nothing, nothing, np.empty(0))
        least, highest = np.array(self._least), np.full(len(self._least), np.inf)
        begins, variables = np.array(self._begins, np.int32), np.array(self._variables, np.int32)
        solver.addRows(len(least), least, highest, len(variables), begins, variables, np.array(self._factors))
        solver.run()
        return list(solver.getSolution().col_value)

    def _by_cbc(self) -> list[float]:
        program = pulp.LpProblem("program", pulp.LpMinimize)
        bounds = zip(self._lowest, self._highest, strict=True)
        found = [
            program.add_variable(f"v{number}", low, high if high < float("inf") else None)
            for number, (low, high) in enumerate(bounds)
        ]
        program += pulp.LpAffineExpression(zip(found, self._costs, strict=True))
        for least, begin, end in zip(
            self._least, self._begins, [*self._begins[1:], len(self._variables)], strict=True
        ):
            terms = zip(self._variables[begin:end], self._factors[begin:end], strict=True)
            program += pulp.LpAffineExpression([(found[one], factor) for one, factor in terms]) >= least
        program.solve(pulp.PULP_CBC_CMD(msg=False))
        return [float(one.value() or 0.0) for one in found]


def integer_solver(nodes: int) -> pulp.LpSolver:
    """A solver for integer programs that stops at the first solution."""
    if _has_highs():
        return _Highs(mip_max_nodes=nodes, mip_max_improving_sols=1)
    return pulp.PULP_CBC_CMD(msg=False, threads=1, maxNodes=nodes, options=["maxSolutions 1"])


class _Highs(pulp.HiGHS):  # type: ignore[misc]
    """HiGHS on one thread, which prints nothing and may have limits.

    Args:
        options: HiGHS's own options.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(msg=False, threads=1, **options)

    def createAndConfigureSolver(self, lp: pulp.LpProblem) -> None:
        """Make HiGHS's own solver, and give it the options."""
        lp.solverModel = _silent(threads=self.threads, **self.optionsDict)

    def findSolutionValues(self, lp: pulp.LpProblem) -> tuple[int, int]:
        """Status, and kind of solution; PuLP's table lacks the statuses of limits other than time."""
        try:
            return tuple(super().findSolutionValues(lp))
        except KeyError:
            if lp.solverModel.getObjectiveValue() == float("inf"):
                return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound
            return pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible


def _silent(**options: Any) -> Any:
    """HiGHS's own solver, with its options; it prints nothing."""
    solver = _silent_class()()
    for name, value in {"output_flag": False, **options}.items():
        solver.setOptionValue(name, value)
    return solver


@functools.cache
def _silent_class() -> type:
    """Silent solvers' class. Since 1.16 HiGHS says its name when it is made, before any option is set."""
    import highspy  # CBC will do where it is missing

    class Silent(highspy.Highs):  # type: ignore[misc, unused-ignore]
        """HiGHS, whose output is off from the start."""

        def enableCallbacks(self) -> None:
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()  # type: ignore[no-untyped-call, unused-ignore]

    return Silent


@functools.cache
def _has_highs() -> bool:
    if pulp.HiGHS(msg=False).available():
        return True
    logger.warning("HiGHS is not installed (pip install highspy): programs of placers are solved with CBC")
    return False
