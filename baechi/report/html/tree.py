"""Layers as a tree of modules, so that a picture of them can be folded.

A module with one child is one with it (`model.layers`). Children that follow each other by number and
lie on the same devices are a child together (`0-13`) where there are many. What is open at first is
chosen so that the picture stays small, and shows where layers of a module lie apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from baechi.records.graph import LayerGraph
from baechi.report.fold import module_of

ALL_SHOWN = 60
"""Up to this many layers, the tree is shown unfolded."""

_SHOWN = 70
_RUN = 3
_MANY = 8


@dataclass
class Branch:
    """A module, or a layer.

    Args:
        path: its qualified name.
        label: what of it is not in its parent's.
        leaf: index of the layer, -1 of a module.
        children: of a module, in code order.
        is_run: whether it is no module but several that follow each other.
        open: whether its children are shown at first.
    """

    path: str
    label: str
    leaf: int = -1
    children: list["Branch"] = field(default_factory=list)
    is_run: bool = False
    open: bool = False

    def leaves(self) -> list[int]:
        """The layers under it."""
        if self.leaf >= 0:
            return [self.leaf]
        return [leaf for child in self.children for leaf in child.leaves()]

    def body(self) -> dict[str, Any]:
        """The branch as JSON-able data."""
        if self.leaf >= 0:
            return {"path": self.path, "label": self.label, "leaf": self.leaf}
        children = [child.body() for child in self.children]
        return {"path": self.path, "label": self.label, "open": self.open, "children": children}


def tree(graph: LayerGraph, names: Sequence[str], device_of: Mapping[str, str]) -> Branch:
    """The tree of a graph's nodes, with what is open at first."""
    root = Branch("", "")
    modules = {"": root}
    for index, name in enumerate(names):
        parent, label = _where(graph, name)
        _module(modules, parent).children.append(Branch(name, label, index))
    devices = [device_of.get(name, "") for name in names]
    _tidy(root, devices)
    _open(root, devices, len(names))
    return root


def _where(graph: LayerGraph, name: str) -> tuple[str, str]:
    """The module that a node is shown in, and its own label."""
    kind = graph.costs(name).kind
    if kind == "input":
        return "", name.removeprefix("input:")
    if kind == "glue":
        return module_of(graph, name), name.rpartition("/")[2].partition("#")[0]
    parent, _, last = module_of(graph, name).rpartition(".")
    call = name.partition("#")[2]
    return parent, (last or name) + (f"#{call}" if call else "")


def _module(modules: dict[str, Branch], path: str) -> Branch:
    if path not in modules:
        parent, _, label = path.rpartition(".")
        modules[path] = Branch(path, label)
        _module(modules, parent).children.append(modules[path])
    return modules[path]


def _tidy(branch: Branch, devices: Sequence[str]) -> None:
    for child in branch.children:
        _tidy(child, devices)
    branch.children = [_only_child(child) for child in branch.children]
    if len(branch.children) > _MANY:
        branch.children = _runs(branch.children, devices)


def _only_child(branch: Branch) -> Branch:
    if len(branch.children) != 1:
        return branch
    (child,) = branch.children
    child.label = f"{branch.label}.{child.label}"
    return child


def _runs(children: list[Branch], devices: Sequence[str]) -> list[Branch]:
    """Children that follow each other by number, on the same devices, as one."""

    def key(pair: tuple[int, Branch]) -> tuple[int, frozenset[str]]:
        place, child = pair
        if not child.label.isdecimal():
            return -1 - place, frozenset()
        return int(child.label) - place + len(children), frozenset(devices[leaf] for leaf in child.leaves())

    found = []
    for _, pairs in groupby(enumerate(children), key):
        run = [child for _, child in pairs]
        if len(run) < _RUN:
            found += run
            continue
        label = f"{run[0].label}-{run[-1].label}"
        found.append(Branch(f"{run[0].path}-{run[-1].label}", label, children=run, is_run=True))
    return found


def _open(root: Branch, devices: Sequence[str], layers: int) -> None:
    """Open modules whose layers lie apart, the largest first, as long as the picture stays small."""
    root.open = True
    if layers <= ALL_SHOWN:
        _open_all(root)
        return
    shown, closed = len(root.children), _closed(root, devices)
    while closed:
        apart, _, chosen = closed.pop(max(range(len(closed)), key=lambda place: closed[place][:2]))
        more = len(chosen.children) - 1
        if shown + more <= _SHOWN and (apart or shown < _MANY):
            chosen.open = True
            shown += more
            closed += _closed(chosen, devices)


def _closed(branch: Branch, devices: Sequence[str]) -> list[tuple[bool, int, Branch]]:
    """The modules in a module: whether their layers lie apart, how many those are.

    What follows each other alike stays together.
    """
    found = []
    for child in branch.children:
        if child.leaf < 0 and not child.is_run:
            leaves = child.leaves()
            found.append((len({devices[leaf] for leaf in leaves}) > 1, len(leaves), child))
    return found


def _open_all(branch: Branch) -> None:
    branch.open = branch.leaf < 0
    for child in branch.children:
        _open_all(child)
