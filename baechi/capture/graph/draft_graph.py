"""All nodes and edges while they are being drafted, and the graph that they become."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from baechi.capture.graph.backward import share_out
from baechi.capture.graph.draft import Draft
from baechi.capture.graph.groups import Groups
from baechi.capture.watch.trace import Storage, Trace, Use
from baechi.records.graph import LayerGraph
from baechi.torchlib.tensors.layout import contiguous_strides


@dataclass(slots=True)
class Drafted:
    """What a walk over a trace has found.

    Args:
        trace: the run.
        drafts: nodes by name.
        groups: nodes that must share a device.
        edges: by source and target, each tensor that goes along.
        alone: by layer, what it returned, if that was one tensor and nothing else.
        after: pairs of nodes that must keep their order, and whether it is because the host waits in between.
        inputs: bytes of the model's inputs, by node.
        read_by: by storage, the nodes that read it.
        written: what was written in place that the writer did not make.
        given: what a layer got as arguments, and glue through its function.
        on_host: glue that reads inputs of the model only, so runs where they lie.
        follows: by functional op that may be placed by itself, the node that it lies with otherwise.
        owners: by number of an event, the node that an operation belongs to.
    """

    trace: Trace
    drafts: dict[str, Draft] = field(default_factory=dict)
    groups: Groups = field(default_factory=Groups)
    edges: dict[tuple[str, str], dict[str, Use]] = field(default_factory=dict)
    alone: dict[str, Use] = field(default_factory=dict)
    after: dict[tuple[str, str], bool] = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)
    read_by: dict[int, set[str]] = field(default_factory=dict)
    written: list[tuple[Draft, Storage]] = field(default_factory=list)
    given: dict[str, tuple[Use, ...]] = field(default_factory=dict)
    on_host: set[str] = field(default_factory=set)
    follows: dict[str, str] = field(default_factory=dict)
    owners: dict[int, Draft] = field(default_factory=dict)

    def graph(self, weights_below: Mapping[str, list[Storage]], because: Mapping[str, str]) -> LayerGraph:
        """The finished graph."""
        graph: nx.DiGraph[Any] = nx.DiGraph(training=self.trace.training)
        for name, size_bytes in self.inputs.items():
            graph.add_node(name, kind="input", output_bytes=size_bytes)
        self._say_what_is_written()
        self._count_second_gradients()
        self._say_what_is_held()
        for name, draft in self.drafts.items():
            made = [(index, draft.made[index][0]) for index in draft.escaped & draft.made.keys()]
            draft.lent = {index for index, s in made if s.saved and name not in self._savers(s)}
        if self.trace.backward is not None:
            share_out(self.trace, self.drafts.values(), self.owners)
            graph.graph["backward_captured"] = True
        names: dict[int, list[str]] = {}
        for weight, storage in self.trace.weights.items():
            names.setdefault(storage.index, []).append(weight)
        sizes = self.groups.sizes()
        first_of: dict[Any, str] = {}
        for name, draft in self.drafts.items():
            draft.given_grad_bytes = self._given_grad_bytes(draft)
            attributes = draft.attributes(training=self.trace.training, names=names)
            if draft.first == len(self.trace.events):
                attributes["unread"] = True
                for amount in ("grad_bytes", "largest_grad_bytes", "backward_rise_bytes"):
                    attributes.pop(amount, None)  # no gradient reaches them, so no optimizer's state
            if draft.kind == "layer" and draft.module in because:
                attributes["whole_because"] = because[draft.module]
            if name in self.on_host:
                attributes["on_host"] = True
            read = _weights_given(self.given[name], names) if draft.kind == "glue" else {}
            if read:
                attributes["reads"] = read
            if sizes[self.groups.first(name)] > 1:
                attributes["colocate"] = self.groups.first(name)
            if name in self.follows:
                attributes["follows"] = self.follows[name]
            twin = first_of.setdefault(self._work_of(draft, weights_below), name)
            if twin != name:
                attributes["twin"] = twin
            graph.add_node(name, **attributes)
        graph.graph["containers"] = self._containers()
        for (source, target), tensors in self.edges.items():
            graph.add_edge(source, target, **self._edge(source, target, tensors))
        for (source, target), host_waits in self.after.items():
            if not graph.has_edge(source, target):
                graph.add_edge(
                    source, target, order_only=True, **({"host_waits": True} if host_waits else {})
                )
        return LayerGraph.from_networkx(graph)

    def _containers(self) -> list[str]:
        """The modules that were called and have layers inside, without the root; in code order."""
        called = self.trace.called()
        found: dict[str, None] = {}
        for draft in self.drafts.values():
            parts = draft.module.split(".") if draft.kind == "layer" else []
            found.update(dict.fromkeys([".".join(parts[:end]) for end in range(1, len(parts))]))
        return [name for name in found if name in called]

    def _edge(self, source: str, target: str, tensors: Mapping[str, Use]) -> dict[str, Any]:
        uses, alone = list(tensors.values()), self.alone.get(source)
        attributes: dict[str, Any] = {
            "bytes": sum([use.size_bytes for use in uses]),
            "tensor": "+".join(sorted(tensors)),
        }
        if len(uses) > 1:
            attributes["parts"] = {tensor: use.size_bytes for tensor, use in tensors.items()}
        if any(use.copy_bytes != use.size_bytes for use in uses):
            attributes["copies"] = {tensor: use.copy_bytes for tensor, use in tensors.items()}
        from_host = source in self.inputs or source in self.on_host
        if from_host and self.trace.training and any(use.requires_grad for use in uses):
            attributes["grad_home"] = True
        if all(self._is_gone_behind(target, use) for use in uses):
            attributes["brief"] = True
        if self.trace.training and not any(target in self._savers(use.storage) for use in uses):
            attributes["unsaved"] = True
        if source in self.inputs:
            return attributes
        if all(use.storage.weight or use.storage.index in self.drafts[source].held for use in uses):
            attributes["held"] = True
        if alone is None or any(use.object != alone.object for use in uses):
            attributes["on_demand"] = True
        if self.trace.training and not any(use.requires_grad for use in uses):
            attributes["no_grad"] = True
        return attributes

    def _is_gone_behind(self, reader: str, use: Use) -> bool:
        """Whether no variable holds a tensor when a reader has run: it was made for this reader."""
        return self.trace.gone.get(use.object, len(self.trace.events)) <= self.drafts[reader].last + 1

    def _savers(self, storage: Storage) -> set[str]:
        """The nodes whose backward keeps a storage; all that use it, if saving was not watched."""
        if storage.saved and not storage.savers:
            return set(self.drafts)
        return {self.owners[event].name for event in storage.savers if event in self.owners}

    def _say_what_is_written(self) -> None:
        for draft, storage in self.written:  # a layer's own statistics (BatchNorm) concern no other layer
            others = self.read_by.get(storage.index, set()) - {draft.name}
            if storage.weight is None or others:
                handed = any(use.storage is storage for use in self.given[draft.name])
                known = handed or storage.weight is not None
                draft.writes = "given" if known and draft.writes != "other" else "other"

    def _say_what_is_held(self) -> None:
        """Note what variables, caches and the caller hold after its last read."""
        end = len(self.trace.events)
        nodes = sorted(self.drafts.values(), key=lambda draft: draft.last)
        lasts = [draft.last for draft in nodes]
        for draft in self.drafts.values():
            until = draft.last
            for index, (storage, _) in draft.made.items():
                gone = storage.forgotten if storage.saved and storage.forgotten is not None else storage.died
                died = end if gone is None else gone
                reading = [name for name in self.read_by.get(index, ()) if name in self.drafts]
                read = max([self.drafts[name].last for name in reading], default=draft.last)
                taken = index in draft.taken_in
                if died >= end or (died > draft.last + 1 and (taken or index not in draft.escaped)):
                    draft.held.add(index)
                elif index in draft.escaped:
                    until = max(until, died - 1 if died > read + 1 else draft.last)
            draft.held_until = _node_at(until, draft, nodes, lasts)

    def _given_grad_bytes(self, draft: Draft) -> int:
        """Gradients that its backward makes for what it was given; weights have theirs anyway."""
        if not draft.runs_backward():
            return 0
        given = {(use.storage.index, use.view): use for use in self.given.get(draft.name, ())}
        wanted = [use for use in given.values() if use.requires_grad and use.storage.weight is None]
        return sum([use.size_bytes for use in wanted])

    def _count_second_gradients(self) -> None:
        """Of a weight with several readers a gradient is there when the owner makes another one."""
        place = {name: index for index, name in enumerate(self.drafts)}
        for storage in {s.index: s for s in self.trace.weights.values() if s.trained}.values():
            readers = sorted(self.read_by.get(storage.index, ()), key=place.__getitem__)
            for name in readers[:-1]:  # backward begins with the last one
                self.drafts[name].second_grad_bytes += storage.size_bytes
                if storage in self.drafts[name].weights:
                    self.drafts[name].moved_grad_bytes -= storage.size_bytes
                    self.drafts[readers[-1]].moved_grad_bytes += storage.size_bytes

    def _work_of(self, draft: Draft, weights_below: Mapping[str, list[Storage]]) -> Any:
        """What two layers have in common that do the same, on other values."""
        if draft.kind == "glue" or not draft.work:
            return draft.name
        weights = [(storage.size_bytes, storage.trained) for storage in weights_below.get(draft.module, ())]
        given = [(use.view[1:], use.requires_grad) for use in self.given[draft.name]]
        return draft.type, tuple(draft.work), tuple(weights), tuple(given), draft.runs_backward()


def _node_at(until: int, draft: Draft, nodes: Sequence[Draft], lasts: Sequence[int]) -> str:
    """The node during which a draft's output is released; `""` if that is the draft itself."""
    if until <= draft.last:
        return ""
    place = min(bisect_left(lasts, until), len(nodes) - 1)
    begun = nodes[place].first + (nodes[place].kind == "layer")  # glue begins with its operation
    if until < begun and nodes[place - 1] is not draft:
        place -= 1  # released before that node begins its work
    return nodes[max(place, 0)].name


def _weights_given(given: Sequence[Use], names: Mapping[int, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """The weights among what a functional op is given, as they are: no views of them."""
    found: dict[str, dict[str, Any]] = {}
    for place, use in enumerate(given):
        dimensions = (len(use.view) - 1) // 2
        shape = use.view[1 : 1 + dimensions]
        whole = use.size_bytes == use.storage.size_bytes and use.view == (
            0,
            *shape,
            *contiguous_strides(shape),
        )
        if use.storage.parameter and whole:
            found[names[use.storage.index][0]] = {"shape": list(shape), "place": place}
    return found
