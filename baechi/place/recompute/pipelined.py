"""A step in microbatches, with modules that run again in backward."""

from collections.abc import Callable, Mapping, Sequence

from baechi.cost.recompute import recomputed
from baechi.errors import PlacementError
from baechi.place.evaluated import Effort
from baechi.place.recompute.candidates import candidate_sets
from baechi.place.recompute.choose import WORTH, Recompute
from baechi.place.recompute.names import modules_named
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline

Graphs = Mapping[int, LayerGraph]
"""By number of microbatches, the graph of one."""

Make = Callable[[Graphs, Effort], Pipeline]
"""Places and orders a step."""


def pipelined_with(graphs: Graphs, recompute: Recompute, make: Make, roomy: Make, effort: Effort) -> Pipeline:
    """Place and order a step, with modules that run again.

    Args:
        graphs: by number of microbatches, the graph of one.
        recompute: qualified names; None takes none. `"auto"` takes none where more memory would not help.
            Else sets of candidates, and halves of them, are placed quickly; the fastest that fits is taken.
        make: places and orders within the devices' memory.
        roomy: does so as if devices had memory without limit.
        effort: how long to search.

    Raises:
        PlacementError: nothing that was found fits.
        ValueError: an unknown name, or a module that cannot run twice.
    """
    sample = next(iter(graphs.values()))
    if recompute is None or not sample.training:
        return make(graphs, effort)
    if recompute != "auto":
        return make(_with_names(graphs, modules_named(sample, recompute)), effort)
    quick, refused = _made(make, graphs, 0)
    if quick is not None:
        bound_s = roomy(graphs, 0).timeline.makespan_s
        if bound_s >= WORTH * quick.timeline.makespan_s:
            return make(graphs, effort)
    best, names = quick, list[str]()
    for chosen in _choices(sample):
        found, _ = _made(make, _with_names(graphs, chosen), 0)
        if found is not None and (best is None or _is_worth_it(found, best)):
            best, names = found, chosen
    if best is None:
        assert refused is not None
        raise refused
    finals = [best]
    for chosen in (names, list[str]()):  # with more effort, a step in which nothing runs again may be faster
        made, _ = _made(make, _with_names(graphs, chosen), effort)
        finals += [made] if made is not None else []
        if not names:
            break
    return min(finals, key=lambda one: one.timeline.makespan_s)


def _choices(graph: LayerGraph) -> list[list[str]]:
    """Names that are tried: half of each set of candidates, and all of it."""
    choices: list[list[str]] = []
    for chosen in candidate_sets(graph):
        names = [one.name for one in chosen]
        choices += [one for one in (names[: len(names) // 2], names) if one and one not in choices]
    return choices


def _is_worth_it(one: Pipeline, other: Pipeline) -> bool:
    return one.timeline.makespan_s < WORTH * other.timeline.makespan_s


def _with_names(graphs: Graphs, names: Sequence[str]) -> dict[int, LayerGraph]:
    return {number: recomputed(graph, sorted(names)) for number, graph in graphs.items()}


def _made(make: Make, graphs: Graphs, effort: Effort) -> tuple[Pipeline | None, PlacementError | None]:
    try:
        return make(graphs, effort), None
    except PlacementError as error:
        return None, error
