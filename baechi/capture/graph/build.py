"""From a trace to a layer graph: events become nodes, tensors become edges.

For each storage the walk keeps its last writer, which gets an edge to each later reader. It keeps the
readers since; each gets an `order_only` edge to the next writer. And it keeps the holder of its device.
Nodes that must share a device are joined on the way:

- a layer with the node that holds what it writes in place, or what its output is a view of;
- layers that hold the same weights, and the calls of one module;
- glue with the holder of the input that the others travel to (`cost.anchor`), or of `x` in `x.device`;
- glue that the runtime does not see as one torch function (an `autograd.Function`, a scripted
  function) with the holders of all its inputs. Glue on model inputs only is bound to no layer.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from baechi.capture.graph.draft import Draft
from baechi.capture.graph.draft_graph import Drafted
from baechi.capture.graph.followers import Followers
from baechi.capture.graph.granularity import Granularity
from baechi.capture.graph.groups import ELSEWHERE
from baechi.capture.graph.storage_state import StorageState
from baechi.capture.graph.unplaced_tensors import Unplaced
from baechi.capture.graph.waits import HostWaits
from baechi.capture.graph.weights import LayersByPath, by_module, join_replaced
from baechi.capture.watch.trace import Boundary, Call, Function, HostWait, Op, Storage, Trace, Use
from baechi.cost.anchor import anchor
from baechi.records.device import HostWork
from baechi.records.device_map import ROOT
from baechi.records.graph import LayerGraph
from baechi.torchlib.operators.functions import writes_first


class Builder:
    """One walk over one trace.

    Args:
        trace: a run of the model.
        granularity: which modules are layers.
        owners: by name of a weight, the node that owns it in graphs of other runs.
    """

    def __init__(
        self, trace: Trace, granularity: Granularity, owners: Mapping[str, str] | None = None
    ) -> None:
        self.owners = owners or {}
        self.trace = trace
        self.granularity = granularity
        self.found = Drafted(trace)
        self.drafts, self.groups, self.given = self.found.drafts, self.found.groups, self.found.given
        self.followers = Followers(self.groups)
        self.states = {storage.index: StorageState() for storage in trace.storages}
        self.tensors: dict[str, dict[Any, str]] = {}
        self.unplaced = Unplaced(self.states, self.found.on_host)
        self.glue: dict[int, Draft | None] = {}
        self.turns: dict[str, int] = {}
        self.host_work = Counter[HostWork]()  # of no node yet: the next one that computes has it
        self.first_calls: dict[str, str] = {}
        self.weights_below = by_module(trace)
        self.lent: dict[int, list[tuple[str, Use]]] = {}
        self._owned_elsewhere()

    def build(self) -> LayerGraph:
        """Walk the trace. The graph has structure and bytes; `measure` puts the seconds on it."""
        waits = HostWaits(self.found)
        for number, event in enumerate(self.trace.events):
            if isinstance(event, Op):
                self._op(event, number)
            elif isinstance(event, HostWait):
                waits.note(number, event, self.states)
            else:
                self._boundary(event, number)
        waits.order()
        self._place_lent_weights()
        self._place_unread_weights()
        join_replaced(self.trace, self.states, self.groups)
        self.found.follows = self.followers.settle({draft for draft, _ in self.found.written})
        return self.found.graph(self.weights_below, self.granularity.because)

    def _owned_elsewhere(self) -> None:
        """Weights that nodes of another run own lie with these, whether they run in this one or not."""
        for name, storage in self.trace.weights.items():
            owner = self.owners.get(name)
            state = self.states[storage.index]
            if owner is not None and state.holder is None:
                state.holder = f"{ELSEWHERE}{owner}"
                self.groups.add(state.holder)

    def _boundary(self, event: Boundary, number: int) -> None:
        call = event.call
        layer = self.granularity.layer_of(call)
        if layer is call:
            if event.kind == "enter":
                self._enter(call, event.uses, number)
            else:
                self._exit(call, event.uses, number)
                if event.alone:
                    self.found.alone[call.node] = event.uses[0]
        if call.parent is None and event.kind == "exit":
            for use in event.uses:
                self._escape(use.storage)
            self._return(event.uses)

    def _return(self, uses: tuple[Use, ...]) -> None:
        """What the model returns goes to where its inputs came from; backward begins there."""
        distinct = list({(use.storage.index, use.view, use.object): use for use in uses}.values())
        for place, use in enumerate(distinct):
            writer = self.states[use.storage.index].writer
            if writer in self.drafts and writer not in self.found.on_host:
                self.drafts[writer].give(str(place), use, is_loss=use.object in self.trace.losses)

    def _enter(self, call: Call, uses: tuple[Use, ...], number: int) -> None:
        module = call.module or ROOT
        draft = self._draft(call.node, "layer", module, call.type, number)
        self.given[draft.name] = uses
        self.groups.join(self.first_calls.setdefault(module, draft.name), draft.name)
        self.unplaced.take_in(draft, [use.storage for use in uses], number)
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
        for storage in [use.storage for use in uses]:
            self.states[storage.index].made = number
            self._escape(storage)

    def _op(self, op: Op, number: int) -> None:
        layer = self.granularity.layer_of(op.call)
        draft = self.drafts[layer.node] if layer is not None else self._glue(op, number)
        self.host_work.update(op.host_work)
        if draft is None or self.unplaced.keeps(op, draft):
            self.unplaced.note(op, number, draft)
            return
        draft.note(op, number, self.host_work)
        self.host_work.clear()
        self.found.owners[number] = draft
        for use in () if op.brings else op.reads:
            if any(use.storage is given.storage for given in self.given[draft.name]):
                continue  # inside, other views of it may be read: what travels is what was given
            own = layer is None or use.storage in self.weights_below.get(layer.module, ())
            own = own or use.storage.index in draft.made or self.unplaced.is_own(use, draft)
            draft.reaches |= not own  # in an object, or a module
            state = self.states[use.storage.index]
            if binds := not own and use.storage.parameter and state.holder is not None:
                self._join_holder(draft.name, state)  # as a weight of its own would
            self.unplaced.take_in(draft, [use.storage], number)
            self._read(draft.name, use, brought=layer is None or not (own or binds))
        draft.as_reached |= op.draws
        for use in op.writes:
            draft.as_reached |= use.storage.index not in draft.made
            self._write(draft, use.storage, number)
        for use in op.makes:
            state = self.states[use.storage.index]
            state.writer, state.made = draft.name, number
            state.holder = None if draft.name in self.found.on_host else draft.name

    def _glue(self, op: Op, number: int) -> Draft | None:
        """The node of an operation between layers: one for each torch function that the code calls."""
        key = id(op.function if op.function is not None else op)
        reads = op.function.reads if op.function is not None else op.reads
        if self.glue.get(key) is None:
            beside = op.function.beside if op.function is not None else None
            if beside is not None and self._has_place(beside):
                self.glue[key] = draft = self._draft_glue(op, reads, number)
                self._join_holder(draft.name, self.states[beside.index])
            elif any(self._has_place(use.storage) or self._from_input(use.storage) for use in reads):
                self.glue[key] = self._new_glue(op, op.function, reads, number)
        return self.glue.get(key)

    def _draft_glue(self, op: Op, reads: tuple[Use, ...], number: int) -> Draft:
        name = op.function.name if op.function is not None else op.name
        path = f"glue:{op.call.module}/{name}"
        turn = self.turns[path] = self.turns.get(path, -1) + 1
        draft = self._draft(f"{path}#{turn}", "glue", op.call.module, name, number)
        self.given[draft.name] = reads
        return draft

    def _new_glue(self, op: Op, function: Function | None, reads: tuple[Use, ...], number: int) -> Draft:
        draft = self._draft_glue(op, reads, number)
        for storage in [use.storage for use in reads if use.storage.weight is not None]:
            self._hold(draft, storage, join=False)
        placed = [use for use in reads if self._has_place(use.storage)]
        first = reads[0].storage if reads and writes_first(draft.type) else None
        if first is not None and (self._has_place(first) or self._from_input(first)):
            placed = [use for use in placed[:1] if use.storage is first]
        if placed:
            states = [self.states[use.storage.index] for use in placed]
            chosen = anchor([(use.size_bytes, state.made) for use, state in zip(placed, states, strict=True)])
            self.followers.note(draft, function, chosen, [str(state.holder) for state in states])
        else:
            self.found.on_host.add(draft.name)
        written = [use.storage for use in op.writes]  # it makes these when it writes them
        self.unplaced.take_in(draft, [use.storage for use in reads if use.storage not in written], number)
        for use in reads:
            self._read(draft.name, use)
        return draft

    def _draft(self, name: str, kind: str, module: str, type_name: str, number: int) -> Draft:
        draft = self.drafts[name] = Draft(name, kind, module, type_name, number, number)
        self.groups.add(name)
        return draft

    def _has_place(self, storage: Storage) -> bool:
        return self.states[storage.index].holder is not None

    def _from_input(self, storage: Storage) -> bool:
        return {self.states[storage.index].writer, storage.input, storage.weight} != {None}

    def _hold(self, draft: Draft, storage: Storage, *, join: bool = True) -> None:
        """A weight lies with the first node that needs it; later ones join it there."""
        state = self.states[storage.index]
        if state.holder is None or (draft.kind == "layer" and state.holder == f"{ELSEWHERE}{draft.name}"):
            if state.holder is not None:
                self.groups.join(state.holder, draft.name)
            state.holder = draft.name
            draft.weights.append(storage)
        elif join:
            self.groups.join(state.holder, draft.name)

    def _join_holder(self, name: str, state: StorageState) -> None:
        if state.holder is not None:
            self.groups.join(state.holder, name)

    def _read(self, name: str, use: Use, *, brought: bool = True) -> None:
        """Note the node that is read: the last writer; for an unwritten weight its owner, if it travels."""
        storage, state = use.storage, self.states[use.storage.index]
        source = state.writer
        if source is None and storage.input is not None:
            source = f"input:{storage.input}"
            self.found.inputs[source] = max(self.found.inputs.get(source, 0), storage.size_bytes)
        if source is None and storage.weight is not None and brought:
            source = state.holder
            if source is None:
                self.lent.setdefault(storage.index, []).append((name, use))
        if source is not None and source != name and not source.startswith(ELSEWHERE):
            known = self.tensors.setdefault(source, {})
            tensor = known.setdefault((storage.index, use.view, use.object), str(len(known)))
            self.found.edges.setdefault((source, name), {})[tensor] = use
            self._escape(storage)
        self.found.read_by.setdefault(storage.index, set()).add(name)
        if name not in state.readers:
            state.readers.append(name)

    def _write(self, draft: Draft, storage: Storage, number: int) -> None:
        state = self.states[storage.index]
        if storage.index not in draft.made:
            self.found.written.append((draft, storage))
        for earlier in (*state.readers, state.writer):
            if earlier is not None and earlier != draft.name:
                self.found.after[earlier, draft.name] = False
        self._join_holder(draft.name, state)
        self.unplaced.take_in(draft, [storage], number)
        if state.holder is None and not self._from_input(storage):  # made from no tensor: this node owns it
            draft.made.setdefault(storage.index, (storage, number))
        state.writer, state.made, state.readers = draft.name, number, [draft.name]
        if storage.weight is not None:
            self._hold(draft, storage)
        elif draft.name not in self.found.on_host:
            state.holder = state.holder or draft.name

    def _escape(self, storage: Storage) -> None:
        if (draft := self.drafts.get(self.states[storage.index].writer or "")) is not None:
            draft.escaped.add(storage.index)

    def _place_lent_weights(self) -> None:
        """Weights passed to layers but owned by none: the first of these owns them for the others."""
        for storage in self.trace.weights.values():
            if self.states[storage.index].holder is None and storage.index in self.lent:
                (first, _), *later = self.lent[storage.index]
                self._hold(self.drafts[first], storage)
                for reader, use in later:
                    self._read(reader, use)

    def _place_unread_weights(self) -> None:
        """Weights that nothing reads still take memory: they get a node of zero time, beside a sibling."""
        layers = LayersByPath(self.drafts)
        for name, storage in self.trace.weights.items():
            if self.states[storage.index].holder is not None:
                continue
            module = name.rpartition(".")[0]
            node = module or ROOT
            if node not in self.drafts:
                sibling = layers.nearest(module)
                self._draft(node, "layer", node, self.trace.modules[module], len(self.trace.events))
                layers.add(node, node)
                if sibling is not None:
                    self.groups.join(sibling, node)
            self._hold(self.drafts[node], storage)
