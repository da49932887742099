"""Which nodes of a layer graph one call of a module is made of."""

from collections.abc import Collection, Iterator

from baechi.records.graph import LayerGraph


def is_within(module: str, name: str) -> bool:
    """Whether a module is another one, or inside of it.

    Args:
        module: a qualified name.
        name: that of the other.
    """
    return module == name or module.startswith(f"{name}.")


def calls_of(graph: LayerGraph, name: str) -> list[list[str]]:
    """The nodes of each call of a module.

    Calls follow each other in code order. A call ends where other code runs, or where the first layer of the
    module runs again.

    Args:
        graph: the layer graph.
        name: qualified name of a module.

    Returns:
        For each call, its nodes in code order.
    """
    calls: list[list[str]] = []
    open_ = False
    for node in graph.placed():
        costs = graph.costs(node)
        inside = is_within(graph.module_of(node), name) and not costs.unread
        if inside and open_ and not _repeats(graph, node, calls[-1]):
            calls[-1].append(node)
        elif inside:
            calls.append([node])
        open_ = inside
    return calls


def _repeats(graph: LayerGraph, node: str, call: Collection[str]) -> bool:
    """Whether a layer is the first of a call, and runs again."""
    if graph.costs(node).kind != "layer":
        return False
    module = graph.module_of(node)
    first = next((one for one in call if graph.costs(one).kind == "layer"), None)
    return first is not None and graph.module_of(first) == module


def outermost(names: Collection[str]) -> Iterator[str]:
    """Some modules without those that are inside of others.

    Args:
        names: qualified names.
    """
    known = set(names)
    for name in dict.fromkeys(names):
        if not any(outer in known for outer in _around(name)):
            yield name


def _around(name: str) -> Iterator[str]:
    """The modules that one is inside of."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name
