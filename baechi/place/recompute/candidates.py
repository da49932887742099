"""The modules that may run again, in the order in which they are worth it.

    total kept by forward   ████████████████████████
    with all blocks again   ▓▓▓▓▓▓▓▓ + ███             what the blocks are given, and one block at a time

So the size of the modules matters: large ones keep few inputs, and small ones come back with little. Sets of
modules by size are compared by that sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from baechi.cost.recompute import Call
from baechi.cost.regions import calls_of, outermost
from baechi.place.recompute.names import callable_names, why_not_twice
from baechi.records.graph import LayerGraph

_NO_TIME_S = 1e-9

_CACHE = 0.05
"""A layer is taken to fill a cache if more than this part of what autograd keeps outlives backward. Less than
that may be what the very last backward frees when it is over."""

_LITTLE = 0.01
"""Modules that save less than this part of what the best one saves are left alone."""

_SIZES = 3
"""So many sets are given, the best by their sums."""


@dataclass(frozen=True)
class Candidate:
    """A module that may run again.

    Args:
        name: the module.
        saves_bytes: what its calls keep no longer.
        comes_back_bytes: what its second run holds.
        takes_s: how long its second run takes.
    """

    name: str
    saves_bytes: float
    comes_back_bytes: float
    takes_s: float

    @property
    def worth(self) -> float:
        """Bytes saved per second."""
        return self.saves_bytes / max(self.takes_s, _NO_TIME_S)


def candidate_sets(graph: LayerGraph) -> list[list[Candidate]]:
    """Sets of modules that may run again, none inside of another."""
    calls = calls_of(graph, callable_names(graph))
    every = [found for name in calls if (found := _candidate(graph, name, calls[name])) is not None]
    least_bytes = _LITTLE * max([one.saves_bytes for one in every], default=0.0)
    every = [one for one in every if one.saves_bytes >= least_bytes]
    sets: dict[tuple[str, ...], tuple[float, list[Candidate]]] = {}
    for size in sorted({one.comes_back_bytes for one in every}):
        chosen = _largest_within(every, size)
        saved = sum([one.saves_bytes for one in chosen])
        key = tuple([one.name for one in chosen])
        sets.setdefault(key, (max([one.comes_back_bytes for one in chosen]) - saved, chosen))
    best = sorted(sets.values(), key=lambda pair: pair[0])[:_SIZES]
    return [_by_worth(chosen) for _, chosen in best]


def _by_worth(chosen: Sequence[Candidate]) -> list[Candidate]:
    """The most worth first; of about the same, the first in code order.

    The last in code order comes last. Its second run is when all others' activations are there, so alone it
    saves nothing.
    """
    return [*sorted(chosen[:-1], key=lambda one: -round(log(one.worth), 1)), chosen[-1]]


def _candidate(graph: LayerGraph, name: str, nodes: Sequence[Sequence[str]]) -> Candidate | None:
    if why_not_twice(graph, name, nodes) or any(_leaves_something(graph, call) for call in nodes):
        return None
    calls = [Call(graph, call) for call in nodes]
    saves = sum([call.saves_bytes for call in calls])
    if saves <= 0:
        return None
    comes_back = max([call.second_run_bytes for call in calls])
    return Candidate(name, saves, comes_back, sum([call.second_run_s for call in calls]))


def _leaves_something(graph: LayerGraph, call: Sequence[str]) -> bool:
    """Whether a call fills a cache, or the model returns what is made inside: a second run does so again."""
    last = call[-1]
    return any(
        costs.lasting_bytes > _CACHE * costs.saved_bytes or (node != last and costs.returned)
        for node, costs in [(node, graph.costs(node)) for node in call]
    )


def _largest_within(every: Sequence[Candidate], size_bytes: float) -> list[Candidate]:
    """The largest modules whose second run holds no more than some bytes, none inside of another."""
    fitting = {one.name: one for one in every if one.comes_back_bytes <= size_bytes}
    return [fitting[name] for name in outermost(fitting)]
