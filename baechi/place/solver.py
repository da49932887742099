"""The solver of linear and integer programs: HiGHS; if it is missing, CBC, which comes with PuLP."""

import functools
import logging

import pulp

logger = logging.getLogger(__name__)


def linear_solver() -> pulp.LpSolver:
    """A solver for linear programs."""
    return pulp.HiGHS(msg=False, threads=1) if _has_highs() else pulp.PULP_CBC_CMD(msg=False)


def integer_solver(nodes: int) -> pulp.LpSolver:
    """A solver for integer programs that stops at the first solution.

    Args:
        nodes: the limit of branch-and-bound nodes. Unlike a time limit, it gives reproducible answers.
    """
    if _has_highs():
        return _Limited(msg=False, threads=1, mip_max_nodes=nodes, mip_max_improving_sols=1)
    return pulp.PULP_CBC_CMD(msg=False, threads=1, maxNodes=nodes, options=["maxSolutions 1"])


class _Limited(pulp.HiGHS):  # type: ignore[misc]
    """HiGHS, with the statuses of limits other than time, which PuLP's table lacks."""

    def findSolutionValues(self, lp: pulp.LpProblem) -> tuple[int, int]:
        """Status, and kind of solution; the values are with the variables."""
        try:
            return tuple(super().findSolutionValues(lp))
        except KeyError:
            if lp.solverModel.getObjectiveValue() == float("inf"):
                return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound
            return pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible


@functools.cache
def _has_highs() -> bool:
    if pulp.HiGHS(msg=False).available():
        return True
    logger.warning("HiGHS is not installed (pip install highspy): programs of placers are solved with CBC")
    return False
