"""The layer graph: what a model computes, in what it costs."""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

import networkx as nx

from baechi.errors import RecordError
from baechi.records.abstract import AbstractRecord

if TYPE_CHECKING:
    DiGraph = nx.DiGraph[str]
else:  # networkx is generic in its type stubs only
    DiGraph = nx.DiGraph

KINDS = ("layer", "glue", "input")
SECONDS = ("forward_s", "backward_s")
AMOUNTS = (
    "spread_s",
    "host_forward_s",
    "host_backward_s",
    "param_bytes",
    "buffer_bytes",
    "grad_bytes",
    "largest_grad_bytes",
    "next_grad_bytes",
    "output_bytes",
    "passing_bytes",
    "held_bytes",
    "saved_bytes",
    "lent_bytes",
    "upstream_grad_bytes",
    "temp_bytes",
    "forward_temp_bytes",
    "backward_rise_bytes",
    "lasting_bytes",
    "upstream_span_bytes",
    "flops",
    "moved_bytes",
    "kernels",
    "backward_flops",
    "backward_moved_bytes",
    "backward_kernels",
)


class LayerGraph(DiGraph, AbstractRecord):
    """A model as a directed graph: nodes are layers, glue and inputs, edges are tensors.

    Node attributes (all optional; a missing amount is 0), in seconds and bytes:

    - `kind`: `"layer"`, `"glue"` or `"input"`; `module`, `type`: qualified name and class of a layer;
    - `forward_s`, `backward_s`: a number (divided by the device's speed) or a dict by device kind;
      `spread_s`: how far the rounds of a measurement lay apart; `host_forward_s`,
      `host_backward_s`: host time to issue its kernels;
    - `param_bytes`, `buffer_bytes`, `grad_bytes`: by storage, ties counted on the first member;
      `largest_grad_bytes`, `next_grad_bytes`: of the two largest weights;
    - `output_bytes`: new storage handed on; `saved_bytes`: what autograd keeps until backward;
      `upstream_grad_bytes`: gradient of the output; `temp_bytes`: peak beyond these while it runs;
    - `held_bytes`: what the model's code holds to the end of forward, not for autograd (a cache, what
      it returns); `passing_bytes`: the part of the output that is neither held nor saved;
      `held_until`: a node, if variables hold that part until then, beyond its last reader;
      `lives`: of several outputs, by `tensor`, the bytes that go with it, and such a node or `""`;
    - what a layer needs as its kernels run (see `docs/design/measure-and-cost.md`): `rising_bytes`,
      `backward_rise_bytes`, `backward_steps`, `lasting_bytes`, `upstream_span_bytes`, `tail`,
      `backward_tail`;
    - `flops`, `moved_bytes`, `kernels`, `dtype`: analytic counts behind an estimate, and their
      dtype's name; `backward_flops`, `backward_moved_bytes`, `backward_kernels`: of backward;
    - `twin`: an earlier layer that does the same work on other values;
    - `colocate`: group id or None (same device); `pin`: device name or None.

    Edge attributes: `bytes` (what travels if the ends lie on different devices), `tensor` (an id
    per source output: a tensor travels once per target device; missing: one tensor per source),
    `order_only=True` (a dependency without data).

    Nodes stand in code order, the order in which the model's code reaches them.
    `graph.graph["training"]` says whether the costs are those of training, `"accumulate"` whether
    gradients of weights are there all the time.
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
        layers.graph.update(graph.graph)
        layers.graph.setdefault("training", False)
        for name, attributes in graph.nodes(data=True):
            layers.add_node(str(name), **{"kind": "layer", **attributes})
        if len(layers) != len(graph):
            raise RecordError("the graph is malformed:", ("two nodes have the same name as text",))
        for source, target, attributes in graph.edges(data=True):
            layers.add_edge(str(source), str(target), **attributes)
        layers.check()
        return layers

    @property
    def training(self) -> bool:
        """Whether the costs are those of training."""
        return bool(self.graph.get("training", False))

    def check(self) -> None:
        """Check the graph.

        Raises:
            RecordError: a negative or infinite amount, an unknown kind, an edge into an input, a
                cycle; every fault listed.
        """
        faults = [fault for name, data in self.nodes(data=True) for fault in _node_faults(name, data)]
        for source, target, data in self.edges(data=True):
            if not _is_amount(data.get("bytes", 0)):
                faults.append(f"edge {source} > {target}: bytes is {data.get('bytes')!r}")
            if self.nodes[target].get("kind") == "input":
                faults.append(f"edge {source} > {target}: nothing leads into an input")
        if not nx.is_directed_acyclic_graph(self):
            cycle = " > ".join([edge[0] for edge in nx.find_cycle(self)])
            faults.append(f"it has a cycle: {cycle}")
        if faults:
            raise RecordError("the layer graph is malformed:", tuple(faults))

    def placed(self) -> Iterator[str]:
        """The nodes that a placer places (all but inputs), in code order."""
        return (name for name, data in self.nodes(data=True) if data.get("kind", "layer") != "input")

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

    def groups(self) -> dict[str, list[str]]:
        """The nodes that must share a device, in code order.

        Returns:
            By group id; a node without a group is a group of its own, under its own name.
        """
        groups: dict[str, list[str]] = {}
        for name, data in self.nodes(data=True):
            if data.get("kind", "layer") != "input":
                group = data.get("colocate")
                groups.setdefault(name if group is None else f"colocate:{group}", []).append(name)
        return groups

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
        graph: nx.DiGraph[Any] = nx.DiGraph(**body["graph"])
        graph.add_nodes_from(body["nodes"])
        graph.add_edges_from(body["edges"])
        return cls.from_networkx(graph)


def _is_amount(value: Any) -> bool:
    return isinstance(value, (int, float)) and isfinite(value) and value >= 0


def _node_faults(name: str, data: Mapping[str, Any]) -> Iterator[str]:
    if data.get("kind", "layer") not in KINDS:
        yield f"{name}: kind is {data['kind']!r}, not one of {', '.join(KINDS)}"
    for attribute in SECONDS:
        value = data.get(attribute) or 0
        for seconds in value.values() if isinstance(value, Mapping) else (value,):
            if not _is_amount(seconds):
                yield f"{name}: {attribute} is {seconds!r}"
    for attribute in AMOUNTS:
        if not _is_amount(data.get(attribute) or 0):
            yield f"{name}: {attribute} is {data[attribute]!r}"
