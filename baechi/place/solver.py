"""Who solves linear and integer programs: HiGHS; CBC, which PuLP brings along, where it is missing."""

import functools
import logging

import pulp

logger = logging.getLogger(__name__)


def linear_solver() -> pulp.LpSolver:
    """For linear programs."""
    return pulp.HiGHS(msg=False, threads=1) if _has_highs() else pulp.PULP_CBC_CMD(msg=False)


def integer_solver(nodes: int) -> pulp.LpSolver:
    """For integer programs of which any solution will do.

    Args:
        nodes: of branch and bound at most: a limit that is no time, so that equal programs get equal answers.
    """
    if _has_highs():
        return _Limited(msg=False, threads=1, mip_max_nodes=nodes, mip_max_improving_sols=1)
    return pulp.PULP_CBC_CMD(msg=False, threads=1, maxNodes=nodes, options=["maxSolutions 1"])


class _Limited(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's table lacks what HiGHS says when it stops at a limit other than of time."""

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
