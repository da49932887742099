"""The linear program of favourite children, in pieces where it would be too large.

Layers i with time p, edges i > j with transfer time c; x is 0 where j is i's favourite child:

    minimize w
    s_i + p_i + c_ij x_ij <= s_j            j starts when i has run, and its output is there
    sum over children of x_ij >= their number - 1       at most one favourite child
    sum over parents of x_ij >= their number - 1        favourite of at most one parent
    s_i + p_i <= w      for layers that nothing follows;   0 <= x <= 1,   s >= 0

A linear program may have many solutions. A small second term prefers many favourites, then the largest
transfers. Its weights are roots, whose sums differ, so the solution is usually unique, and solvers agree.

Where transfers are long, the seconds for the whole program grow much faster than the layers. So a program has
at most `MOST_EDGES` edges. A larger graph is cut in pieces of about equal size, by the time at which layers
could start. A program for each piece finds its x. Then its layers start as early as these let them, whichever
starts the solver returned. What was found for earlier pieces stays. What follows a piece counts as a longest
path on which each layer follows its most urgent parent without a transfer. The result keeps all rules above,
but w need not be the least.

After Hanen and Munier, "An approximation algorithm for scheduling dependent tasks on m processors with small
communication delays", ETFA 1995. The pieces are ours.
"""

from collections.abc import Mapping, Sequence
from math import ceil

from baechi.place.problem import Problem
from baechi.place.solver import LinearProgram, Term

MOST_EDGES = 2_000
"""The most edges in one program. With 3,000 all programs take twice as long where transfers are long."""

Edge = tuple[int, int]

_FIRST_TERM = 1e4
"""Weight of w, in units of the mean time, against 1 to 2 for each x. A solver ignores differences below
1e-7, so the objective's small term is not scaled down; the large one is scaled up."""


def solve(problem: Problem, edges: Mapping[Edge, float]) -> tuple[dict[Edge, float], int]:
    """Find each edge's x."""
    program = _Program(problem, edges)
    pieces = program.pieces()
    for piece in pieces:
        program.solve(piece)
    return program.apart, len(pieces)


class _Program:
    """The program, solved piece by piece. Times are divided by their mean, to suit the solver's tolerances.

    Args:
        problem: what is to be placed.
        edges: by parent and child in two groups, the seconds of a transfer.
    """

    def __init__(self, problem: Problem, edges: Mapping[Edge, float]) -> None:
        self.apart: dict[Edge, float] = {}
        layers = range(len(problem.indexed))
        work_s = [sum([row[layer] for row in problem.work_s]) / len(problem.work_s) for layer in layers]
        unit_s = (sum(work_s) + sum(edges.values())) / len(edges) or 1.0
        self._work = [seconds / unit_s for seconds in work_s]
        self._followers = problem.followers
        self._travel = {edge: seconds / unit_s for edge, seconds in edges.items()}
        self._parents: list[list[int]] = [[] for _ in layers]
        for layer, followers in enumerate(self._followers):
            for follower in followers:
                self._parents[follower].append(layer)
        self._children = [[f for f in self._followers[layer] if (layer, f) in edges] for layer in layers]
        self._left = _paths_to_the_end(self._work, self._followers, self._travel)
        self._start = [0.0 for _ in layers]
        self._end = 0.0

    def pieces(self) -> list[list[int]]:
        """The layers of each program, in topological order."""
        starts = [0.0 for _ in self._work]
        for layer, followers in enumerate(self._followers):
            for follower in followers:
                starts[follower] = max(starts[follower], starts[layer] + self._work[layer])
        order = sorted(range(len(starts)), key=starts.__getitem__)
        number = ceil(len(self._travel) / MOST_EDGES)
        if number == 1:
            return [order]
        found: list[list[int]] = [[] for _ in range(number)]
        before = 0
        for layer in order:
            found[before * number // len(self._travel)].append(layer)
            before += sum([(parent, layer) in self._travel for parent in self._parents[layer]])
            before = min(before, len(self._travel) - 1)
        return [piece for piece in found if piece]

    def solve(self, piece: Sequence[int]) -> None:
        """Solve the program of one piece; those before it are solved."""
        program = LinearProgram()
        start = {layer: program.variable(0.0, 0.0) for layer in piece}
        end = program.variable(_FIRST_TERM, self._end)
        edges = [(parent, layer) for layer in piece for parent in self._parents[layer]]
        unsure = [edge for edge in edges if edge in self._travel]
        ranked = sorted(unsure, key=lambda edge: (-self._travel[edge], edge))
        costs = {edge: 2 - (rank / len(ranked)) ** 0.5 for rank, edge in enumerate(ranked)}
        apart = {edge: program.variable(costs[edge], 0.0, 1.0) for edge in unsure}
        for edge in edges:
            parent, child = edge
            terms, there = [(start[child], 1.0)], self._work[parent]
            if parent in start:
                terms.append((start[parent], -1.0))
            else:
                there += self._start[parent]
            if edge in apart:
                terms.append((apart[edge], -self._travel[edge]))
            program.at_least(there, terms)
        self._at_most_one(program, apart)
        for layer in piece:
            later = [follower for follower in self._followers[layer] if follower not in start]
            if later or not self._followers[layer]:  # all other layers end before one of these
                ends = self._work[layer] + max([self._left[follower] for follower in later], default=0.0)
                program.at_least(ends, [(end, 1.0), (start[layer], -1.0)])
        found = program.solve()
        self._end = max(self._end, found[end])
        for edge, variable in apart.items():
            self.apart[edge] = found[variable]
        for layer in piece:
            ready = [self._ready(parent, layer) for parent in self._parents[layer]]
            self._start[layer] = max(ready, default=0.0)

    def _ready(self, parent: int, child: int) -> float:
        """When a parent has run, and its output is where the child runs."""
        edge = parent, child
        travel = self._travel[edge] * self.apart[edge] if edge in self._travel else 0.0
        return self._start[parent] + self._work[parent] + travel

    def _at_most_one(self, program: LinearProgram, apart: Mapping[Edge, int]) -> None:
        """Add the rules for favourites; an earlier piece may have a part of a layer's favourite child."""
        children: dict[int, list[Term]] = {}
        parents: dict[int, list[Term]] = {}
        for (parent, child), variable in apart.items():
            children.setdefault(parent, []).append((variable, 1.0))
            parents.setdefault(child, []).append((variable, 1.0))
        for parent, terms in children.items():
            known = [self.apart[parent, c] for c in self._children[parent] if (parent, c) in self.apart]
            taken = min(1.0, sum([1 - x for x in known]))
            if len(terms) > 1 or taken:
                program.at_least(len(terms) - 1 + taken, terms)
        for terms in parents.values():
            if len(terms) > 1:
                program.at_least(len(terms) - 1, terms)


def _paths_to_the_end(
    work: Sequence[float], followers: Sequence[Sequence[int]], travel: Mapping[Edge, float]
) -> list[float]:
    """By layer, the longest path from its start, if the favourite of each is its most urgent child."""
    left = [0.0] * len(work)
    for layer in reversed(range(len(work))):
        after = [(left[f] + travel.get((layer, f), 0.0), left[f]) for f in followers[layer]]
        after.sort(reverse=True)
        others = after[1][0] if len(after) > 1 else 0.0
        left[layer] = work[layer] + (max(after[0][1], others) if after else 0.0)
    return left
