"""The union of several graphs of one model, captured with inputs that take different paths.

    one     a ─ b ─ d          union   a ─ b ─ d      a node that ran with several inputs has
    other   a ─ c ─ d                  └─ c ──┘       the largest amounts of all of them

Layers are known by name. Functional ops (glue) are numbered anew in each run. So two of them are
the same node if they call the same function in the same module and read the same nodes.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import networkx as nx

from baechi.capture.graph.groups import ELSEWHERE, Groups
from baechi.records.graph import LayerGraph


def union(graphs: Iterable[LayerGraph]) -> LayerGraph:
    """All nodes and edges of several graphs of one model."""
    return reduce(_both, graphs)


def _both(one: LayerGraph, other: LayerGraph) -> LayerGraph:
    names = _same_nodes(one, other)
    running = {names[name] for name in other if not other.costs(name).unread}
    idle = {name for name in one if one.costs(name).unread} & running
    order = _merged_order([name for name in one if name not in idle], [names[name] for name in other])
    merged: nx.DiGraph[Any] = nx.DiGraph(**one.graph)
    back = {name: source for source, name in names.items()}
    for name in order:
        mine = one.nodes[name] if name in one else None
        theirs = other.nodes[back[name]] if name in back else None
        merged.add_node(name, **_merged_attributes(mine, theirs))
    merged.add_edges_from(one.edges(data=True))
    _add_edges(merged, [(names[a], names[b], data) for a, b, data in other.edges(data=True)])
    _join_groups(merged, one, other, names)
    uncounted = {*one.graph.get("uncounted", ()), *other.graph.get("uncounted", ())}
    containers = [*one.graph.get("containers", ()), *other.graph.get("containers", ())]
    merged.graph["containers"] = list(dict.fromkeys(containers))
    if uncounted:
        merged.graph["uncounted"] = sorted(uncounted)
    return LayerGraph.from_networkx(merged)


def _same_nodes(one: LayerGraph, other: LayerGraph) -> dict[str, str]:
    """By name in the other graph, the name of the same node in the first one, or a new name."""
    glue: dict[tuple[str, frozenset[str]], list[str]] = {}
    for name in one:
        if one.costs(name).kind == "glue":
            glue.setdefault((_path(name), frozenset(one.predecessors(name))), []).append(name)
    names: dict[str, str] = {}
    taken = set(one)
    place = {name: index for index, name in enumerate(other)}
    for name in nx.lexicographical_topological_sort(other, key=place.__getitem__):
        names[name] = name
        if other.costs(name).kind == "glue":
            read = frozenset(names[source] for source in other.predecessors(name))
            same = glue.get((_path(name), read))
            names[name] = same.pop(0) if same else _unused(_path(name), taken)
            taken.add(names[name])
    return names


def _path(glue: str) -> str:
    return glue.rpartition("#")[0]


def _unused(path: str, taken: set[str]) -> str:
    number = 0
    while f"{path}#{number}" in taken:
        number += 1
    return f"{path}#{number}"


def _merged_order(one: list[str], other: list[str]) -> list[str]:
    """The first order, with the nodes that only the other has right behind those they came after there."""
    known = set(one)
    behind: dict[str | None, list[str]] = {}
    last: str | None = None
    for name in other:
        if name in known:
            last = name
        else:
            behind.setdefault(last, []).append(name)
    order = [*behind.get(None, ())]
    for name in one:
        order += [name, *behind.get(name, ())]
    return order


def _merged_attributes(one: Any, other: Any) -> dict[str, Any]:
    if one is None or other is None:
        return dict(one or other or {})
    if one.get("unread", False) != other.get("unread", False):  # it ran in one of them only
        ran, idle = (other, one) if one.get("unread", False) else (one, other)
        return {**_largest(idle, ran), "type": ran["type"]}
    merged = _largest(one, other)
    if one.get("twin") != other.get("twin"):
        merged.pop("twin", None)
    if one.get("unread", False):
        merged["unread"] = True
    return merged


def _largest(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**other, **one}
    merged.pop("unread", None)
    for name in one.keys() & other.keys():
        merged[name] = _larger(one[name], other[name])
    return merged


def _larger(one: Any, other: Any) -> Any:
    if isinstance(one, (int, float)):
        return max(one, other)
    if isinstance(one, Mapping):  # seconds by kind of device
        return {kind: max(one.get(kind, 0.0), other.get(kind, 0.0)) for kind in {**one, **other}}
    if isinstance(one, tuple):  # kernels with their arithmetic
        return max(one, other, key=lambda kernels: sum([flops for flops, _ in kernels]))
    if isinstance(one, list):
        return list(dict.fromkeys([*one, *other]))
    return one


def _add_edges(merged: "nx.DiGraph[Any]", edges: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
    place = {name: index for index, name in enumerate(merged)}
    for source, target, data in edges:
        known: dict[str, Any] | None = merged.get_edge_data(source, target)
        if known is None:
            backward = place[source] > place[target]
            if not (backward and nx.has_path(merged, target, source)):
                merged.add_edge(source, target, **data)
        elif known.get("order_only") and not data.get("order_only"):
            known.pop("order_only")
            known.pop("host_waits", None)
            known.update(data)
        elif not data.get("order_only"):
            known["bytes"] = max(known.get("bytes", 0), data.get("bytes", 0))
            if data.get("copies"):
                known["copies"] = _larger(known.get("copies", {}), data["copies"])
            if not data.get("no_grad"):
                known.pop("no_grad", None)
            for flag in ("on_demand", "grad_home"):
                if data.get(flag):
                    known[flag] = True


def _join_groups(
    merged: "nx.DiGraph[Any]", one: LayerGraph, other: LayerGraph, names: Mapping[str, str]
) -> None:
    """Nodes that share a device in either graph do; what only took memory there may lie elsewhere here.

    A functional op is free if it is free, and follows the same node, in each graph that has it.
    """
    groups = Groups()
    for name in merged:
        groups.add(name)
    for graph, name_of in ((one, {}), (other, names)):
        for name, data in graph.nodes(data=True):
            node, group = name_of.get(name, name), data.get("colocate")
            if group is not None and data.get("unread") == merged.nodes[node].get("unread"):
                group = name_of.get(group, group.removeprefix(ELSEWHERE))
                groups.add(group)
                groups.join(group, node)
    follows: dict[str, str] = {}
    for graph, name_of in ((one, {}), (other, names)):
        for name, data in graph.nodes(data=True):
            if (followed := data.get("follows")) is not None:
                node, followed = name_of.get(name, name), name_of.get(followed, followed)
                if follows.setdefault(node, followed) != followed:
                    groups.join(follows[node], node)
                    groups.join(followed, node)
    for name, followed in follows.items():
        if groups.first(name) != groups.first(followed):
            merged.nodes[name]["follows"] = followed
        else:
            merged.nodes[name].pop("follows")
    sizes = groups.sizes()
    for name, data in merged.nodes(data=True):
        data.pop("colocate", None)
        if sizes[groups.first(name)] > 1:
            data["colocate"] = groups.first(name)
