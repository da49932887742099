"""Which nodes of a layer graph one call of a module is made of."""

from collections.abc import Collection, Iterator

from baechi.records.graph import LayerGraph


def is_within(module: str, name: str) -> bool:
    """Whether a module is another one, or inside of it."""
    return module == name or module.startswith(f"{name}.")


def calls_of(graph: LayerGraph, names: Collection[str]) -> dict[str, list[list[str]]]:
    """The nodes of each call of some modules.

    Calls follow each other in code order. A call ends where other code runs, or where the first layer of the
    module runs again.
    """
    calls: dict[str, list[list[str]]] = {name: [] for name in names}
    first_layer: dict[str, str] = {}
    open_: list[str] = []
    for node, costs in graph.placed_costs():
        module = graph.module_of(node)
        inside = [] if costs.unread else [name for name in (module, *around(module)) if name in calls]
        is_layer = costs.kind == "layer"
        for name in inside:
            repeats = is_layer and first_layer.get(name) == module
            if name not in open_ or repeats:
                calls[name].append([])
                first_layer.pop(name, None)
            calls[name][-1].append(node)
            if is_layer:
                first_layer.setdefault(name, module)
        open_ = inside
    return calls


def outermost(names: Collection[str]) -> Iterator[str]:
    """Some modules without those that are inside of others."""
    known = set(names)
    for name in dict.fromkeys(names):
        if not any(outer in known for outer in around(name)):
            yield name


def around(name: str) -> Iterator[str]:
    """The modules that one is inside of, from the inside out, without the root."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name
