"""Favourite children: which layer should follow another on its device, by a linear program.

The relaxation for unlimited devices of Hanen and Munier (ETFA 1995), as m-SCT uses it (Jeon et al., SoCC
2020, section on SCT); `favourite_program` states it. Its solution has an x for each edge: 0
where the child is the parent's favourite, so follows it without a transfer.

The solution is fractional. Edges are accepted in order of growing x, up to the threshold, if neither end
has an accepted edge. So the two "at most one" rules hold for any values that the solver returns.
"""

from dataclasses import dataclass

from baechi.place.listing.favourite_program import solve
from baechi.place.problem import Problem

THRESHOLD = 0.1
"""The largest x of an edge to a favourite child (`--sct_threshold` of the original TensorFlow version)."""


@dataclass(frozen=True)
class Favourites:
    """The favourite children of a problem.

    Args:
        child_of: by layer; no layer is the favourite of two.
        programs: in how many linear programs they were found; above one, the solution is feasible and not
            the best.
    """

    child_of: dict[int, int]
    programs: int


def favourites(problem: Problem, threshold: float = THRESHOLD) -> Favourites:
    """Find the favourite child of each layer."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold is {threshold}: it lies between 0 and 1")
    edges = _edges(problem)
    if not edges:
        return Favourites({}, 0)
    apart, programs = solve(problem, edges)
    child_of: dict[int, int] = {}
    taken: set[int] = set()
    ranked = sorted(edges, key=lambda edge: (round(apart[edge], 6), -edges[edge], edge))
    for parent, child in ranked:
        if apart[parent, child] <= threshold + 1e-9 and parent not in child_of and child not in taken:
            child_of[parent] = child
            taken.add(child)
    return Favourites(child_of, programs)


def _edges(problem: Problem) -> dict[tuple[int, int], float]:
    """By parent and child, the seconds of a transfer between two devices, on average."""
    indexed = problem.indexed
    edges: dict[tuple[int, int], float] = {}
    known: dict[int, float] = {}
    for tensor, maker in enumerate(indexed.source):
        if maker < 0 or len(problem.devices) == 1:
            continue
        size = indexed.size_bytes[tensor]
        if size not in known:
            known[size] = problem.mean_travel_s(size)
        for reader in indexed.consumers[tensor]:
            if indexed.group_of[reader] != indexed.group_of[maker]:  # else they share a device anyway
                edges[maker, reader] = edges.get((maker, reader), 0.0) + known[size]
    return edges
