"""From a trace to a layer graph: events become nodes, tensors become edges.

The walk keeps, for each storage, who wrote it last (an edge leads from there to whoever reads it
next), who read it since (an `order_only` edge leads from each to the next writer), and its holder:
the node whose device it lies on. Nodes that must share a device are joined on the way:

- a layer with the node that holds what it writes in place, or what its output is a view of;
- layers that hold the same weights, and the calls of one module;
- a layer with the holder of what it reads without having been given it;
- glue with the holder of the input that the others travel to (`cost.anchor`);
- glue that the runtime does not see as one torch function (an `autograd.Function`, a scripted
  function) with the holders of all its inputs.

Glue that works on model inputs only (masks) is bound to nobody: it runs where the inputs lie.
"""

from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from baechi.capture.draft import Draft
from baechi.capture.granularity import Granularity
from baechi.capture.groups import Groups
from baechi.capture.trace import Boundary, Call, Function, Op, Storage, Trace, Use
from baechi.capture.weights import by_module, nearest_layer
from baechi.cost.anchor import anchor, writes_first
from baechi.records.device_map import ROOT
from baechi.records.graph import LayerGraph


@dataclass(slots=True)
class _State:
    """What is known of a storage at a point of the walk."""

    writer: str | None = None
    holder: str | None = None
    made: int = -1
    readers: list[str] = field(default_factory=list)


class Builder:
    """One walk over one trace.

    Args:
        trace: a run of the model.
        granularity: which modules are layers.
    """

    def __init__(self, trace: Trace, granularity: Granularity) -> None:
        self.trace = trace
        self.granularity = granularity
        self.drafts: dict[str, Draft] = {}
        self.groups = Groups()
        self.states = {storage.index: _State() for storage in trace.storages}
        self.edges: dict[tuple[str, str], dict[str, int]] = {}
        self.after: dict[tuple[str, str], None] = {}
        self.tensors: dict[str, dict[Any, str]] = {}
        self.inputs: dict[str, int] = {}
        self.on_host: set[str] = set()
        self.glue: dict[int, Draft | None] = {}
        self.turns: dict[str, int] = {}
        self.first_calls: dict[str, str] = {}
        self.weights_below = by_module(trace)
        self.read_by: dict[int, set[str]] = {}
        self.written: list[tuple[Draft, Storage]] = []
        self.given: dict[str, tuple[Use, ...]] = {}  # to a layer as arguments, to glue by its function

    def build(self) -> LayerGraph:
        """Walk the trace.

        Returns:
            The graph: structure and bytes; seconds are put on by `measure`.
        """
        for number, event in enumerate(self.trace.events):
            if isinstance(event, Op):
                self._op(event, number)
            else:
                self._boundary(event, number)
        self._place_unread_weights()
        return self._graph()

    def _boundary(self, event: Boundary, number: int) -> None:
        call = event.call
        layer = self.granularity.layer_of(call)
        if layer is call:
            if event.kind == "enter":
                self._enter(call, event.uses, number)
            else:
                self._exit(call, event.uses, number)
        if call.parent is None and event.kind == "exit":
            for use in event.uses:
                self._escape(use.storage)

    def _enter(self, call: Call, uses: tuple[Use, ...], number: int) -> None:
        module = call.module or ROOT
        draft = self._draft(call.node, "layer", module, call.type, number)
        self.given[draft.name] = uses
        self.groups.join(self.first_calls.setdefault(module, draft.name), draft.name)
        for use in uses:
            self._read(draft.name, use)
        for storage in self.weights_below.get(call.module, ()):
            self._hold(draft, storage)

    def _exit(self, call: Call, uses: tuple[Use, ...], number: int) -> None:
        draft = self.drafts[call.node]
        draft.last = number
        given = {(use.storage.index, use.view) for use in self.given[draft.name]}
        foreign = [use for use in uses if use.storage.index not in draft.made]
        for use in foreign:
            state = self.states[use.storage.index]
            handed_on = (use.storage.index, use.view) in given and len(foreign) < len(uses)
            if not handed_on:  # its output is a view: what is written there is seen here
                self._join_holder(draft.name, state)
            if len(foreign) == len(uses) and use.storage.weight is None:
                state.writer = state.holder = draft.name
        for use in uses:
            self.states[use.storage.index].made = number
            self._escape(use.storage)

    def _op(self, op: Op, number: int) -> None:
        layer = self.granularity.layer_of(op.call)
        draft = self.drafts[layer.node] if layer is not None else self._glue(op, number)
        if draft is None:  # made of nothing that has a place: belongs to its first user
            return
        draft.note(op, number)
        for use in op.reads:
            if any(use.storage is given.storage for given in self.given[draft.name]):
                continue  # inside, other views of it may be read: what travels is what was given
            self._read(draft.name, use)
            if layer is not None and use.storage.index not in draft.made:
                # a module or a cache handed over: nobody can bring what it holds, so stay with it
                self._join_holder(draft.name, self.states[use.storage.index])
        for use in op.writes:
            self._write(draft, use.storage, number)
        for use in op.makes:
            host = draft.name in self.on_host
            state = self.states[use.storage.index]
            state.writer, state.made = draft.name, number
            state.holder = None if host else draft.name

    def _glue(self, op: Op, number: int) -> Draft | None:
        """The node of an operation between layers: one for each torch function that the code calls."""
        key = id(op.function if op.function is not None else op)
        reads = op.function.reads if op.function is not None else op.reads
        if self.glue.get(key) is None:
            if not any(self._has_place(use.storage) or self._from_input(use.storage) for use in reads):
                return None
            self.glue[key] = self._new_glue(op, op.function, reads, number)
        return self.glue[key]

    def _new_glue(self, op: Op, function: Function | None, reads: tuple[Use, ...], number: int) -> Draft:
        name = function.name if function is not None else op.name
        path = f"glue:{op.call.module}/{name}"
        turn = self.turns.get(path, 0)
        self.turns[path] = turn + 1
        draft = self._draft(f"{path}#{turn}", "glue", op.call.module, name, number)
        self.given[draft.name] = reads
        for use in reads:
            self._read(draft.name, use)
        for use in reads:
            if use.storage.weight is not None:
                self._hold(draft, use.storage, join=False)
        placed = [use for use in reads if self._has_place(use.storage)]
        if reads and writes_first(name):
            if self._has_place(reads[0].storage):
                placed = [reads[0]]
            elif self._from_input(reads[0].storage):
                placed = []
        if not placed:
            self.on_host.add(draft.name)
            return draft
        if function is None or function.whole:  # the runtime cannot bring one input to another
            for use in placed:
                self._join_holder(draft.name, self.states[use.storage.index])
        states = [self.states[use.storage.index] for use in placed]
        chosen = anchor([(use.size_bytes, state.made) for use, state in zip(placed, states, strict=True)])
        self._join_holder(draft.name, states[chosen])
        return draft

    def _draft(self, name: str, kind: str, module: str, type_name: str, number: int) -> Draft:
        draft = Draft(name, kind, module, type_name, number, number)
        self.drafts[name] = draft
        self.groups.add(name)
        return draft

    def _has_place(self, storage: Storage) -> bool:
        return self.states[storage.index].holder is not None

    def _from_input(self, storage: Storage) -> bool:
        written = self.states[storage.index].writer is not None
        return written or storage.input is not None or storage.weight is not None

    def _hold(self, draft: Draft, storage: Storage, *, join: bool = True) -> None:
        """A weight lies with the first node that needs it; later ones join it there."""
        state = self.states[storage.index]
        if state.holder is None:
            state.holder = draft.name
            draft.weights.append(storage)
        elif join:
            self.groups.join(state.holder, draft.name)

    def _join_holder(self, name: str, state: _State) -> None:
        if state.holder is not None:
            self.groups.join(state.holder, name)

    def _read(self, name: str, use: Use) -> None:
        storage, state = use.storage, self.states[use.storage.index]
        source = state.writer
        if source is None and storage.input is not None:
            source = f"input:{storage.input}"
            self.inputs[source] = max(self.inputs.get(source, 0), storage.size_bytes)
        if source is None and storage.weight is not None:
            source = state.holder  # a weight that glue reads where another node owns it
        if source is not None and source != name:
            known = self.tensors.setdefault(source, {})
            tensor = known.setdefault((storage.index, use.view), str(len(known)))
            self.edges.setdefault((source, name), {})[tensor] = use.size_bytes
            self._escape(storage)
        self.read_by.setdefault(storage.index, set()).add(name)
        if name not in state.readers:
            state.readers.append(name)

    def _write(self, draft: Draft, storage: Storage, number: int) -> None:
        state = self.states[storage.index]
        if storage.index not in draft.made:
            self.written.append((draft, storage))
        for earlier in (*state.readers, state.writer):
            if earlier is not None and earlier != draft.name:
                self.after[earlier, draft.name] = None
        self._join_holder(draft.name, state)
        state.writer, state.made, state.readers = draft.name, number, [draft.name]
        if storage.weight is not None:
            self._hold(draft, storage)
        elif draft.name not in self.on_host:
            state.holder = state.holder or draft.name

    def _escape(self, storage: Storage) -> None:
        writer = self.states[storage.index].writer
        for name in (writer,) if writer in self.drafts else ():
            self.drafts[name].escaped.add(storage.index)

    def _place_unread_weights(self) -> None:
        """Weights that nothing reads still take memory: a node of no time, with a sibling."""
        for name, storage in self.trace.weights.items():
            if self.states[storage.index].holder is not None:
                continue
            module = name.rpartition(".")[0]
            node = module or ROOT
            if node not in self.drafts:
                sibling = nearest_layer(self.drafts, module)
                last = len(self.trace.events)
                self._draft(node, "layer", node, self.trace.modules[module], last)
                if sibling is not None:
                    self.groups.join(sibling, node)
            self._hold(self.drafts[node], storage)

    def _count_second_gradients(self) -> None:
        """Of a weight with several readers a gradient is held while another one is made, and their sum."""
        for storage in {s.index: s for s in self.trace.weights.values() if s.trained}.values():
            readers = [name for name in self.drafts if name in self.read_by.get(storage.index, ())]
            for name in readers[:-1]:  # backward begins with the last one
                self.drafts[name].second_grad_bytes += 2 * storage.size_bytes

    def _work_of(self, draft: Draft) -> Any:
        """What two layers have in common that do the same, on other values."""
        if draft.kind == "glue" or not draft.work:
            return draft.name
        weights = [storage.size_bytes for storage in self.weights_below.get(draft.module, ())]
        given = [(use.view[1:], use.storage.requires_grad) for use in self.given[draft.name]]
        return draft.type, tuple(draft.work), tuple(weights), tuple(given)

    def _graph(self) -> LayerGraph:
        graph: nx.DiGraph[Any] = nx.DiGraph(training=self.trace.training)
        for name, size_bytes in self.inputs.items():
            graph.add_node(name, kind="input", output_bytes=size_bytes)
        names: dict[int, list[str]] = {}
        for weight, storage in self.trace.weights.items():
            names.setdefault(storage.index, []).append(weight)
        for draft, storage in self.written:  # a layer's own statistics are nobody else's business
            others = self.read_by.get(storage.index, set()) - {draft.name}
            if storage.weight is None or others:
                handed = any(use.storage is storage for use in self.given[draft.name])
                known = handed or storage.weight is not None
                draft.writes = "given" if known and draft.writes != "other" else "other"
        self._count_second_gradients()
        sizes = self.groups.sizes()
        first_of: dict[Any, str] = {}
        for name, draft in self.drafts.items():
            given = {use.storage.index: use.storage for use in self.given.get(name, ())}
            draft.given_grad_bytes = sum(
                [s.size_bytes for s in given.values() if s.requires_grad and s.weight is None]
            )
            attributes = draft.attributes(training=self.trace.training, names=names)
            if draft.first == len(self.trace.events):
                attributes["unread"] = True
            if sizes[self.groups.first(name)] > 1:
                attributes["colocate"] = self.groups.first(name)
            twin = first_of.setdefault(self._work_of(draft), name)
            if twin != name:
                attributes["twin"] = twin
            graph.add_node(name, **attributes)
        for (source, target), tensors in self.edges.items():
            graph.add_edge(source, target, bytes=sum(tensors.values()), tensor="+".join(sorted(tensors)))
        for source, target in self.after:
            if not graph.has_edge(source, target):
                graph.add_edge(source, target, order_only=True)
        return LayerGraph.from_networkx(graph)
