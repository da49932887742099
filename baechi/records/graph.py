"""The layer graph: what a model computes, in what it costs."""

from collections.abc import Iterator, Mapping
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, ClassVar

import networkx as nx

from baechi.errors import RecordError
from baechi.records.abstract import AbstractRecord
from baechi.records.edge_costs import EdgeCosts
from baechi.records.graph_notes import GraphNotes
from baechi.records.layer_costs import LayerCosts
from baechi.records.schema import LONGEST, Name, few_of, form_of, in_words, malformed, refused, shown, within

if TYPE_CHECKING:
    DiGraph = nx.DiGraph[str]
else:  # networkx is generic in its type stubs only
    DiGraph = nx.DiGraph


class LayerGraph(DiGraph, AbstractRecord):
    """A model as a directed graph: nodes are layers, functional ops (`glue`) and inputs, edges are tensors.

    The attributes of nodes and edges are those of NetworkX: read and write them as usual. The package knows
    the ones listed below, and `costs` and `edge_costs` give them typed, with their defaults. All are
    optional; None is as if missing, and others are kept as they are.

    Nodes stand in code order, the order in which the model's code reaches them. `graph.graph` has notes on
    the whole, which are listed below, too.
    """

    record_kind: ClassVar[str] = "graph"

    @classmethod
    def from_networkx(cls, graph: "nx.DiGraph[Any]") -> "LayerGraph":
        """A layer graph from any directed graph of networkx.

        Args:
            graph: attributes as above. Missing kinds become `"layer"`; names become text.

        Returns:
            A checked copy.

        Raises:
            RecordError: what is malformed, every fault listed; see `check`.
        """
        if not graph.is_directed() or graph.is_multigraph():
            raise RecordError("the graph is malformed:", ("it must be an nx.DiGraph, single edges",))
        layers = cls()
        layers.graph.update(_noted(graph.graph))
        layers.graph.setdefault("training", False)
        for name, attributes in graph.nodes(data=True):
            layers.add_nodes_from([(str(name), {"kind": LayerCosts.kind, **attributes})])
        if len(layers) != len(graph):
            raise RecordError("the graph is malformed:", ("two nodes have the same name as text",))
        for source, target, attributes in graph.edges(data=True):
            layers.add_edges_from([(str(source), str(target), attributes)])
        layers.check()
        for _, data in layers.nodes(data=True):
            data.update(LayerCosts.read(data, "reads", "splits", "shard"))
        return layers

    @property
    def training(self) -> bool:
        """Whether the costs are those of training."""
        return bool(self.graph.get("training", False))

    @property
    def outputs_stay(self) -> bool:
        """Whether what the model returns stays where it was made; else it goes to where its inputs lie."""
        return bool(self.graph.get("outputs") == "device")

    def noted(self, **notes: str | bool) -> "LayerGraph":
        """The graph with notes in `graph.graph`, so that a plan holds all that its step depends on.

        Args:
            **notes: by name.

        Returns:
            A copy; the graph itself if it has these notes.
        """
        if all(self.graph.get(name) == note for name, note in notes.items()):
            return self
        copied = LayerGraph.from_networkx(self)
        copied.graph.update(notes)
        return copied

    def __str__(self) -> str:
        return repr(self)

    def check(self) -> None:
        """Check the graph.

        Raises:
            RecordError: a negative or infinite amount, an unknown kind, an edge into an input, a
                cycle; every fault listed.
        """
        faults = [_sentence(*fault) for fault in self._faults()]
        if faults:
            raise RecordError("the layer graph is malformed:", tuple(faults))

    def _faults(self) -> Iterator["_Fault"]:
        """What is wrong: the node or edge (None: the graph), where in its attributes, and what."""
        for name, data in self.nodes(data=True):
            if not isinstance(name, str) or not 0 < len(name) <= LONGEST:
                yield name, "", f"its name is {shown(name)}, not text of 1 to {LONGEST:,} characters"
            elif max(name.count("."), str(data.get("module")).count(".")) > _DEEPEST:
                yield name, "", f"its name, or that of its module, has more than {_DEEPEST} dots"
        yield from GraphNotes.faults([(None, self.graph)])
        yield from LayerCosts.faults(self.nodes.items())
        edges = (((source, target), data) for source, target, data in self.edges(data=True))
        yield from EdgeCosts.faults(edges)
        for name in self:
            if self.nodes[name].get("kind") == "input":
                for source in self.predecessors(name):
                    yield (source, name), "", "nothing leads into an input"
        if not self.says("shard") and not self.says("joins"):  # what is split is named as it was before
            yield from self._strangers()
        if not nx.is_directed_acyclic_graph(self):
            yield None, "", f"it has a cycle: {few_of([edge[0] for edge in nx.find_cycle(self)], ' > ')}"

    def _strangers(self) -> Iterator["_Fault"]:
        """Attributes that name nodes which are not there."""
        for name, data in self.nodes(data=True):
            for attribute in _NODES:
                other = data.get(attribute)
                for one in other if isinstance(other, Mapping) else [other] if other else ():
                    if isinstance(one, str) and one not in self:
                        yield name, f".{attribute}", f"it is {shown(one)}, and there is no such node"

    def placed(self) -> Iterator[str]:
        """The nodes that a placer places (all but inputs), in code order."""
        kind = LayerCosts.kind
        return (name for name, data in self.nodes(data=True) if data.get("kind", kind) != "input")

    def code_order(self) -> tuple[str, ...]:
        """All nodes but inputs, each after those it depends on, in code order as far as that allows.

        Raises:
            RecordError: the graph has a cycle.
        """
        index = {name: position for position, name in enumerate(self)}
        try:
            ordered = list(nx.lexicographical_topological_sort(self, key=index.__getitem__))
        except nx.NetworkXUnfeasible:
            self.check()
            raise
        placed = set(self.placed())
        return tuple(name for name in ordered if name in placed)

    def costs(self, name: str) -> LayerCosts:
        """The attributes of a node at this moment, typed, with defaults.

        Args:
            name: a node.
        """
        return LayerCosts.of(self.nodes[name])

    def placed_costs(self) -> Iterator[tuple[str, LayerCosts]]:
        """The nodes that a placer places, in code order, each with its attributes."""
        for name, data in self.nodes(data=True):
            costs = LayerCosts.of(data)
            if costs.kind != "input":
                yield name, costs

    def edge_costs(self, source: str, target: str) -> EdgeCosts:
        """The attributes of an edge at this moment, typed, with defaults.

        Args:
            source: the node that it leaves.
            target: the node that it leads to.
        """
        return EdgeCosts.of(self.edges[source, target])

    def says(self, attribute: str) -> bool:
        """Whether some node has an attribute.

        Args:
            attribute: its name.
        """
        return any([attribute in data for _, data in self.nodes(data=True)])

    def module_of(self, name: str) -> str:
        """The qualified name of the module that a node is a call of, or whose code it is in.

        Args:
            name: a node.
        """
        module = self.nodes[name].get("module")
        return name if module is None else str(module)

    def amount(self, name: str, attribute: str) -> float:
        """An amount of a node, 0 when missing.

        Args:
            name: a node.
            attribute: one of the amounts, such as `"param_bytes"`.
        """
        return float(self.nodes[name].get(attribute) or 0)

    def seconds(self, name: str, attribute: str, kind: str, speed: float = 1.0) -> float:
        """The time of a node on a device.

        Args:
            name: a node.
            attribute: `"forward_s"` or `"backward_s"`.
            kind: the device's kind; used when times are given by kind.
            speed: the device's speed; used when the time is one number.

        Returns:
            Seconds.

        Raises:
            RecordError: times are given by kind, and not for this one.
        """
        value = self.nodes[name].get(attribute) or 0.0
        if not isinstance(value, Mapping):
            return float(value) / speed
        if kind not in value:
            known = ", ".join(sorted(value))
            raise RecordError(
                f"layer {name} has no {attribute} for devices of kind {kind!r} (it has: {known}): "
                "profile the model for this cluster"
            )
        return float(value[kind])

    def groups(self, *, apart: bool = False) -> dict[str, list[str]]:
        """The nodes that share a device, in code order.

        Args:
            apart: whether functional ops may lie apart from what they follow (`follows`). Then these are the
                nodes that must share a device.

        Returns:
            By group id; a node without a group is a group of its own, under its own name.
        """
        groups: dict[str, list[str]] = {}
        group_of: dict[str, str] = {}
        for name in self.placed():
            group = self.nodes[name].get("colocate", LayerCosts.colocate)
            group_of[name] = name if group is None else f"colocate:{group}"
            groups.setdefault(group_of[name], []).append(name)
        return groups if apart else self._joined(groups, group_of)

    def _joined(self, groups: dict[str, list[str]], group_of: Mapping[str, str]) -> dict[str, list[str]]:
        """Groups, with functional ops beside what they follow; in code order, by the id of the first one."""
        into = {name: name for name in groups}

        def first(group: str) -> str:
            while into[group] != group:
                group = into[group]
            return group

        rank = {group: place for place, group in enumerate(groups)}
        for name, group in group_of.items():
            followed = self.nodes[name].get("follows", LayerCosts.follows)
            if followed is not None and followed in group_of:
                one, other = sorted([first(group), first(group_of[followed])], key=rank.__getitem__)
                into[other] = one
        if all([group == joined for group, joined in into.items()]):
            return groups
        joined: dict[str, list[str]] = {}
        for name, group in group_of.items():
            joined.setdefault(first(group), []).append(name)
        return joined

    def total(self, attribute: str) -> float:
        """An amount summed over all nodes.

        Args:
            attribute: one of the amounts.
        """
        return sum(self.amount(name, attribute) for name in self)

    def body(self) -> dict[str, Any]:
        """The graph as JSON-able data."""
        return {
            "graph": dict(self.graph),
            "nodes": [[name, dict(data)] for name, data in self.nodes(data=True)],
            "edges": [[source, target, dict(data)] for source, target, data in self.edges(data=True)],
        }

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "LayerGraph":
        """The graph that `body` wrote.

        Args:
            body: JSON-able data.

        Raises:
            RecordError: the graph is malformed.
        """
        if not isinstance(body, Mapping):
            raise refused(body, "a graph")
        wrong = [("", f"it misses {key!r}") for key in ("graph", "nodes", "edges") if key not in body]
        if wrong:
            raise malformed(*wrong)
        if not isinstance(body["graph"], Mapping):
            raise malformed((".graph", f"it is {shown(body['graph'])}, not an object"))
        graph, index = cls(), dict[Any, int]()
        graph.graph.update({"training": False, **_noted(body["graph"])})
        for place, (name, data) in _rows(body, "nodes", 1):
            if name in index:
                raise malformed((f".nodes[{place}]", f"it is a second node {shown(name)}"))
            index[name] = place
            graph.add_nodes_from([(name, {"kind": LayerCosts.kind, **data})])
        for place, (source, target, data) in _rows(body, "edges", 2):
            for name in (source, target):
                if name not in index:
                    raise malformed((f".edges[{place}]", f"there is no node {shown(name)}"))
            if (source, target) in index:
                second = f"it is a second edge {shown(source)} > {shown(target)}"
                raise malformed((f".edges[{place}]", second))
            index[source, target] = place
            graph.add_edges_from([(source, target, data)])
        wrong = []
        for key, path, what in graph._faults():
            rows = "edges" if isinstance(key, tuple) else "nodes"
            wrong.append((".graph" + path if key is None else f".{rows}[{index[key]}]{path}", what))
        if wrong:
            raise malformed(*wrong)
        for _, data in graph.nodes(data=True):
            data.update(LayerCosts.read(data, "reads", "splits", "shard"))
        return graph


_Fault = tuple[Any, str, str]

_DEEPEST = 100
"""Modules lie so deep in each other at most."""

_NODES = (*LayerCosts.amounts("node"), "runs_again")
"""The attributes that name nodes."""


def _sentence(key: Any, path: str, what: str) -> str:
    named = [
        one if len(one) <= LONGEST else shown(one)
        for one in map(str, key if isinstance(key, tuple) else [key])
    ]
    whose = "" if key is None else f"edge {' > '.join(named)}: " if named[1:] else f"{named[0]}: "
    return whose + in_words(path.removeprefix("."), what) if path else whose + what


def _noted(notes: Mapping[str, Any]) -> dict[str, Any]:
    """The notes that say something: null is as if missing."""
    return {name: note for name, note in notes.items() if note is not None}


def _rows(body: Mapping[str, Any], key: str, names: int) -> Iterator[tuple[int, list[Any]]]:
    """The nodes or edges of a file, each with its place: names and attributes."""
    if not isinstance(body[key], list):
        raise malformed((f".{key}", f"it is {shown(body[key])}, not a list"))
    name_of = form_of(Name).read
    for place, row in enumerate(body[key]):
        try:
            if not isinstance(row, list) or len(row) != names + 1:
                raise refused(row, f"a list of {names + 1}")
            if not isinstance(row[-1], Mapping):
                raise refused(row[-1], "an object of attributes")
            for name in row[:-1]:
                name_of(name)
        except RecordError as error:
            raise malformed(*within(f".{key}[{place}]", error)) from error
        yield place, row


LayerGraph.__doc__ = "\n\n".join(
    [
        cleandoc(LayerGraph.__doc__ or ""),
        "Attributes of a node:",
        LayerCosts.documented(),
        "Attributes of an edge:",
        EdgeCosts.documented(),
        "Notes on the graph, in `graph.graph`:",
        GraphNotes.documented(),
    ]
)
