"""The modules that a user names, as the layer graph knows them."""

from collections.abc import Iterable, Sequence

from baechi.cost.regions import calls_of, is_within, outermost
from baechi.records.graph import LayerGraph


def callable_names(graph: LayerGraph) -> list[str]:
    """The modules that were called: layers, and modules with layers inside; in code order."""
    containers, found = frozenset(graph.graph.get("containers", ())), dict[str, None]()
    for node, costs in graph.placed_costs():
        if costs.kind == "layer" and not costs.unread:
            module = graph.module_of(node)
            parts = module.split(".")
            above = [".".join(parts[:end]) for end in range(1, len(parts))]
            found.update(dict.fromkeys([*(name for name in above if name in containers), module]))
    return list(found)


def modules_named(graph: LayerGraph, names: str | Iterable[str]) -> list[str]:
    """The modules that run again, from what a user says."""
    if not isinstance(names, Iterable):
        raise ValueError(
            f"recompute is {names!r}: it takes 'auto', or names of modules that run again in backward"
        )
    known = callable_names(graph)
    found: list[str] = []
    for name in [names] if isinstance(names, str) else names:
        inside = [name] if name in known else [one for one in known if is_within(one, name)]
        if name in _split(graph):
            raise ValueError(
                f"recompute names {name!r}, which is split: only the block around a split layer can run "
                "again. Name that block, or leave the layer out of split= or recompute="
            )
        if not inside or not name:
            raise ValueError(
                f"recompute names {name!r}, which is no module that the model calls: name blocks, such as "
                f"{', '.join(known[:3]) or 'none here'}"
            )
        found += outermost(inside)
    chosen = list(outermost(found))
    for name, calls in calls_of(graph, chosen).items():
        if reason := why_not_twice(graph, name, calls):
            raise ValueError(f"{name} cannot run again in backward: {reason}")
    return chosen


def _split(graph: LayerGraph) -> set[str]:
    """The layers that a graph splits."""
    return {costs.shard["of"] for _, costs in graph.placed_costs() if costs.shard is not None}


def why_not_twice(graph: LayerGraph, name: str, calls: Iterable[Sequence[str]]) -> str:
    """Why a second run of a module would not compute what the first did; `""` if it would."""
    for call in calls:
        inside = frozenset(call)
        for node in call:
            writes = graph.costs(node).writes
            read_from_outside = any(source not in inside for source in graph.predecessors(node))
            if writes == "other" or (writes and read_from_outside and _hands_on_its_input(graph, node)):
                return f"{node} writes in place what {name} is given"
    return ""


def _hands_on_its_input(graph: LayerGraph, node: str) -> bool:
    """Whether a node's output is memory that it was given; a batch norm writes its own buffers only."""
    sizes = [graph.edge_costs(node, target).bytes for target in graph.successors(node)]
    return graph.costs(node).output_bytes < max(sizes, default=1)
