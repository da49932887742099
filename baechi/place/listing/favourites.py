"""Favourite children: which layer should follow another on its device, by a linear program.

The relaxation for unlimited devices of Hanen and Munier, "An approximation algorithm for scheduling
dependent tasks on m processors with small communication delays" (ETFA 1995), as m-SCT uses it (Jeon
et al., SoCC 2020, section on SCT; design document, section 1.2). Layers i with time p, edges i > j
with transfer time c; x is 0 where j is i's favourite child, so follows it without a transfer:

    minimize w
    s_i + p_i + c_ij x_ij <= s_j            j starts when i has run, and its output is there
    sum over children of x_ij >= their number - 1       at most one favourite child
    sum over parents of x_ij >= their number - 1        favourite of at most one parent
    s_i + p_i <= w      for layers that nothing follows;   0 <= x <= 1,   s >= 0

The solution is fractional. Edges are accepted in order of growing x, up to the threshold, if neither end
has an accepted edge. So the two "at most one" rules hold for any values that the solver returns. A linear
program may have many solutions. A small second term prefers many favourites, then the largest transfers.
So the solution is usually unique, and solvers agree.
"""

from collections.abc import Mapping

import pulp

from baechi.place.solver import linear_solver
from baechi.place.task import Task

THRESHOLD = 0.1
"""The largest x of an edge to a favourite child (`--sct_threshold` of the original TensorFlow version)."""

_FIRST_TERM = 1e4
"""Weight of w, in units of the mean time, against 1 to 2 for each x. A solver ignores differences below
1e-7, so the objective's small term is not scaled down; the large one is scaled up."""


def favourite_children(task: Task, threshold: float = THRESHOLD) -> dict[int, int]:
    """Find the favourite child of each layer; no layer is the favourite of two.

    Args:
        task: what is to be placed.
        threshold: the largest x of an edge to a favourite child, from 0 to 1.

    Raises:
        ValueError: the threshold is not between 0 and 1.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold is {threshold}: it lies between 0 and 1")
    edges = _edges(task)
    if not edges:
        return {}
    solved = _solve(task, edges)
    child_of: dict[int, int] = {}
    taken: set[int] = set()
    ranked = sorted(edges, key=lambda edge: (round(solved[edge], 6), -edges[edge], edge))
    for parent, child in ranked:
        if solved[parent, child] <= threshold + 1e-9 and parent not in child_of and child not in taken:
            child_of[parent] = child
            taken.add(child)
    return child_of


def _edges(task: Task) -> dict[tuple[int, int], float]:
    """By parent and child, the seconds of a transfer between two devices, on average."""
    indexed = task.indexed
    edges: dict[tuple[int, int], float] = {}
    known: dict[int, float] = {}
    for tensor, maker in enumerate(indexed.source):
        if maker < 0 or len(task.devices) == 1:
            continue
        size = indexed.size_bytes[tensor]
        if size not in known:
            known[size] = task.mean_travel_s(size)
        for reader in indexed.consumers[tensor]:
            if indexed.group_of[reader] != indexed.group_of[maker]:  # else they share a device anyway
                edges[maker, reader] = edges.get((maker, reader), 0.0) + known[size]
    return edges


def _solve(task: Task, edges: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """The program's x by edge. Times are divided by their mean, to suit the solver's tolerances."""
    layers = range(len(task.indexed))
    work = [sum([row[layer] for row in task.work_s]) / len(task.work_s) for layer in layers]
    unit = (sum(work) + sum(edges.values())) / len(edges) or 1.0
    problem = pulp.LpProblem("favourites", pulp.LpMinimize)
    starts = [problem.add_variable(f"s{layer}", 0) for layer in layers]
    end = problem.add_variable("w", 0)
    apart = {edge: problem.add_variable(f"x{n}", 0, 1) for n, edge in enumerate(edges)}
    rank = {edge: n for n, edge in enumerate(sorted(edges, key=lambda edge: (-edges[edge], edge)))}
    second = [(apart[edge], 2 - rank[edge] / len(edges)) for edge in edges]
    problem += pulp.LpAffineExpression([(end, _FIRST_TERM), *second])
    children: dict[int, list[pulp.LpVariable]] = {}
    parents: dict[int, list[pulp.LpVariable]] = {}
    for (parent, child), seconds in edges.items():
        variable = apart[parent, child]
        terms = [(starts[child], 1.0), (starts[parent], -1.0), (variable, -seconds / unit)]
        problem += pulp.LpAffineExpression(terms) >= work[parent] / unit
        children.setdefault(parent, []).append(variable)
        parents.setdefault(child, []).append(variable)
    for variables in (*children.values(), *parents.values()):
        if len(variables) > 1:
            problem += pulp.lpSum(variables) >= len(variables) - 1
    for layer in layers:
        if not task.followers[layer]:  # all other layers end before one of these
            problem += pulp.LpAffineExpression([(end, 1.0), (starts[layer], -1.0)]) >= work[layer] / unit
    for earlier, later in _inside_groups(task, edges):
        terms = [(starts[later], 1.0), (starts[earlier], -1.0)]
        problem += pulp.LpAffineExpression(terms) >= work[earlier] / unit
    problem.solve(linear_solver())
    return {edge: float(variable.value() or 0.0) for edge, variable in apart.items()}


def _inside_groups(task: Task, edges: Mapping[tuple[int, int], float]) -> list[tuple[int, int]]:
    """Edges within one group, and edges without a tensor that only order two layers."""
    indexed = task.indexed
    pairs = {
        (maker, reader)
        for tensor, maker in enumerate(indexed.source)
        for reader in indexed.consumers[tensor]
        if maker >= 0
    }
    pairs |= {(layer, follower) for layer, after in enumerate(indexed.after) for follower in after}
    return sorted(pairs - edges.keys())
