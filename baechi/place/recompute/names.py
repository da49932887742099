"""The modules that a user names, as the layer graph knows them."""

from collections.abc import Iterable

from baechi.cost.regions import calls_of, is_within, outermost
from baechi.records.graph import LayerGraph


def callable_names(graph: LayerGraph) -> list[str]:
    """The modules that were called: layers, and modules with layers inside; in code order.

    Args:
        graph: the layer graph.
    """
    found = dict.fromkeys(graph.graph.get("containers", ()))
    for node, costs in graph.placed_costs():
        if costs.kind == "layer" and not costs.unread:
            found[graph.module_of(node)] = None
    return list(found)


def modules_named(graph: LayerGraph, names: str | Iterable[str]) -> list[str]:
    """The modules that run again, from what a user says.

    Args:
        graph: the layer graph.
        names: qualified names. A list of modules that is not called itself stands for those in it; what is
            inside of another one is covered by it.

    Returns:
        Names of modules that were called, none inside of another.

    Raises:
        ValueError: an unknown name, or a module that cannot run twice.
    """
    known = callable_names(graph)
    found: list[str] = []
    for name in [names] if isinstance(names, str) else names:
        inside = [name] if name in known else [one for one in known if is_within(one, name)]
        if not inside or not name:
            raise ValueError(
                f"recompute names {name!r}, which is no module that the model calls: name blocks, such as "
                f"{', '.join(known[:3]) or 'none here'}"
            )
        found += outermost(inside)
    chosen = list(outermost(found))
    for name in chosen:
        if reason := why_not_twice(graph, name):
            raise ValueError(f"{name} cannot run again in backward: {reason}")
    return chosen


def why_not_twice(graph: LayerGraph, name: str) -> str:
    """Why a second run of a module would not compute what the first did; `""` if it would.

    Args:
        graph: the layer graph.
        name: a module.
    """
    for call in calls_of(graph, name):
        inside = frozenset(call)
        for node in call:
            costs = graph.costs(node)
            read_from_outside = any(source not in inside for source in graph.predecessors(node))
            if costs.writes == "other" or (costs.writes == "given" and read_from_outside):
                return f"{node} writes in place what {name} is given"
    return ""
