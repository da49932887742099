"""The solver of linear and integer programs: HiGHS; if it is missing, CBC, which comes with PuLP."""

import functools
import logging
from typing import Any

import pulp

logger = logging.getLogger(__name__)


def linear_solver() -> pulp.LpSolver:
    """A solver for linear programs."""
    return _Highs() if _has_highs() else pulp.PULP_CBC_CMD(msg=False)


def integer_solver(nodes: int) -> pulp.LpSolver:
    """A solver for integer programs that stops at the first solution.

    Args:
        nodes: the limit of branch-and-bound nodes. Unlike a time limit, it gives reproducible answers.
    """
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
        lp.solverModel = _silent_class()()
        for name, value in {"output_flag": False, "threads": self.threads, **self.optionsDict}.items():
            lp.solverModel.setOptionValue(name, value)

    def findSolutionValues(self, lp: pulp.LpProblem) -> tuple[int, int]:
        """Status, and kind of solution; PuLP's table lacks the statuses of limits other than time."""
        try:
            return tuple(super().findSolutionValues(lp))
        except KeyError:
            if lp.solverModel.getObjectiveValue() == float("inf"):
                return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound
            return pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible


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
