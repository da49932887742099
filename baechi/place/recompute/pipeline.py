"""A step in microbatches, with modules that run again in backward."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from baechi.cost.recompute import recomputed
from baechi.errors import PlacementError
from baechi.place.evaluation import Effort
from baechi.place.recompute.alternatives import Alternative, Alternatives
from baechi.place.recompute.candidates import candidate_sets
from baechi.place.recompute.choose import WORTH, Recompute
from baechi.place.recompute.names import callable_names, modules_named
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline

Graphs = Mapping[int, LayerGraph]
"""By number of microbatches, the graph of one."""

Make = Callable[[Graphs, Effort], Pipeline]
"""Places and orders a step."""


@dataclass(frozen=True)
class Makers:
    """What places and orders.

    Args:
        within: within the devices' memory.
        quick: the same in little time, to compare.
        by_cuts: as `quick`, by contiguous cuts or not at all.
        roomy: as `quick`, as if devices had memory without limit.
        least_s: from a number of microbatches and the graph of one, what a step takes at least.
        outlook_s: from the same, about what it takes by its cuts alone; none if no cut fits.
    """

    within: Make
    quick: Make
    by_cuts: Make
    roomy: Make
    least_s: Callable[[int, LayerGraph], float]
    outlook_s: Callable[[int, LayerGraph], float | None]


_FINALS, _NEAR = 6, 1.05
"""So many of the best alternatives are searched with all effort, if they are at most this much slower."""

_KNOWN = 16
"""So many graphs are kept: an alternative is often placed right after its bound."""

_WORK, _FEWEST, _MOST = 50_000, 24, 400
"""How many alternatives are made: this divided by nodes and tasks, within limits."""

_LARGE = 20_000
"""With more nodes and tasks, an alternative takes seconds: few are made, those of the best outlook."""

_PARTS, _PROMISING = 8, 3
"""There, each set of modules is tried in so many steps, and so many alternatives that fit are compared."""


def pipelined_with(graphs: Graphs, recompute: Recompute, makers: Makers, effort: Effort) -> Pipeline:
    """Place and order a step, with modules that run again."""
    sample = next(iter(graphs.values()))
    if recompute is None or not sample.training:
        return makers.within(graphs, effort)
    if recompute != "auto":
        return makers.within(_with_names(graphs, modules_named(sample, recompute)), effort)
    if len(sample) * max(graphs) > _LARGE:
        return _promising(graphs, makers, effort)
    plain = _made(makers.quick, graphs, 0)
    if plain is not None and _step_s(makers.roomy(graphs, 0)) >= WORTH * _step_s(plain):
        return makers.within(graphs, effort)
    return _searched(graphs, makers, effort)


def _searched(graphs: Graphs, makers: Makers, effort: Effort) -> Pipeline:
    @lru_cache(_KNOWN)
    def of(one: Alternative) -> dict[int, LayerGraph]:
        return _with_names({one.microbatches: graphs[one.microbatches]}, one.names)

    def made(one: Alternative) -> Pipeline | None:
        return _made(makers.quick, of(one), 0)

    def least(one: Alternative) -> float:
        return makers.least_s(one.microbatches, of(one)[one.microbatches])

    sample = next(iter(graphs.values()))
    sets = [[one.name for one in chosen] for chosen in candidate_sets(sample)]
    work = len(sample) * max(graphs)
    search = Alternatives(sorted(graphs), sets, made, least, min(_MOST, max(_FEWEST, _WORK // work)))
    found = search.search()
    if not found:
        return makers.within(graphs, effort)  # which says what is short
    near = [one for one in found if one.step_s <= _NEAR * found[0].step_s][:_FINALS]
    finals = [_made(makers.within, of(one.alternative), effort) for one in near]
    return min([found[0].made, *[one for one in finals if one is not None]], key=_step_s)


def _promising(graphs: Graphs, makers: Makers, effort: Effort) -> Pipeline:
    """The fastest of few alternatives, the best by their outlook: the first modules of a set run again.

    In a pipeline the first devices have most microbatches in flight, so these are worth most.
    """
    sample, ranked = next(iter(graphs.values())), list[tuple[float, int, int, tuple[str, ...]]]()
    for place, names in enumerate(_stretches(sample)):
        for number, graph in _with_names(graphs, names).items():
            outlook_s = makers.outlook_s(number, graph)
            if outlook_s is not None:
                ranked.append((outlook_s, number, place, names))
    found = list[Pipeline]()
    for _, number, _, names in sorted(ranked):
        one = _made(makers.by_cuts, _with_names({number: graphs[number]}, names), 0)
        found += [one] if one is not None else []
        if len(found) == _PROMISING:
            break
    if not found:
        return makers.within(_with_names(graphs, _stretches(sample)[-1]), effort)  # it says what is short
    best = min(found, key=_step_s)
    of_best = _with_names({best.microbatches: graphs[best.microbatches]}, best.plan.recompute)
    final = _made(makers.within, of_best, effort) if effort else None
    return best if final is None else min(best, final, key=_step_s)


def _stretches(sample: LayerGraph) -> list[tuple[str, ...]]:
    """Nothing, some of the modules of each set in code order, and at the end all of the best set."""
    place = {name: number for number, name in enumerate(callable_names(sample))}
    sets = [sorted([one.name for one in some], key=place.__getitem__) for some in candidate_sets(sample)]
    found = [
        tuple(names[: -(-len(names) * part // _PARTS)]) for names in sets for part in range(1, _PARTS + 1)
    ]
    best = [tuple(names) for names in sets[:1]]
    return list(dict.fromkeys([(), *[names for names in found if names not in best], *best]))


def _made(make: Make, graphs: Graphs, effort: Effort) -> Pipeline | None:
    try:
        return make(graphs, effort)
    except PlacementError:
        return None


def _step_s(made: Pipeline) -> float:
    return made.timeline.makespan_s


def _with_names(graphs: Graphs, names: Sequence[str]) -> dict[int, LayerGraph]:
    return {number: recomputed(graph, sorted(names)) for number, graph in graphs.items()}
