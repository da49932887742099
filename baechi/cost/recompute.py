"""A layer graph as it costs if backward runs some modules again, and keeps none of their activations.

                without                          with
    forward     each layer keeps its activations   the call keeps what it is given
    backward    each layer's backward frees its    the last layer's begins with the whole call: all its
                own                                activations are there, and go layer by layer

So this is a matter of costs alone: what placers, simulators and reports read is the changed graph, which
notes the modules.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from baechi.cost.regions import calls_of
from baechi.records.edge_costs import EdgeCosts
from baechi.records.graph import LayerGraph
from baechi.records.layer_costs import LayerCosts

_Seconds = float | Mapping[str, float]


def recomputed(graph: LayerGraph, names: Iterable[str], *, together: bool = True) -> LayerGraph:
    """A graph with the costs of running some modules again."""
    wanted, there = list(names), list(graph.graph.get("recompute", ()))
    if there and wanted and there != wanted:
        raise ValueError(
            f"this graph counts that {', '.join(there)} run again: give the graph that profile returned"
        )
    if not wanted or there:
        return graph
    copied = LayerGraph.from_networkx(graph)
    copied.graph["recompute"] = wanted
    if graph.training:
        calls = [Call(copied, nodes) for found in calls_of(graph, wanted).values() for nodes in found]
        for call in calls:
            call.change(together=together)
    return copied


class Call:
    """One call of a module that runs again.

    Args:
        graph: the graph that is changed.
        nodes: the nodes of the call, in code order.
    """

    def __init__(self, graph: LayerGraph, nodes: Sequence[str]) -> None:
        self._graph = graph
        self._nodes = nodes
        self._inside = frozenset(nodes)
        self._costs = {node: graph.costs(node) for node in nodes}
        programs = graph.graph.get("programs", False)
        self._drawn = {node for node in nodes if programs and self._costs[node].as_reached}
        """What programs keep though it is in a region: what is drawn, or made of what is written."""
        self._first_keeper: dict[str, str] = {}
        self._kept_inside = self._kept_for(inside=True)
        self._kept_outside = self._kept_for(inside=False)

    @property
    def saves_bytes(self) -> float:
        """What forward keeps no longer, less what it keeps of the call's arguments for that."""
        saved = sum([costs.saved_bytes for costs in self._costs.values()])
        return saved - sum(map(self._still_kept, self._nodes)) - sum(self._newly_kept().values())

    @property
    def second_run_bytes(self) -> float:
        """The most that the second run holds: what it has kept so far, and what is read later in it."""
        return self._second_run_bytes({node: self._saved_again(node) for node in self._nodes})

    @property
    def second_run_s(self) -> float:
        """How long the second run takes; on the fastest kind of device, if times are given by kind."""
        again = {node: self._saved_again(node) for node in self._nodes}
        running = [costs for _, part in self._second_run(again) for costs in part]
        return sum([max(_fastest_s(costs.forward_s), costs.host_forward_s) for costs in running])

    def change(self, *, together: bool) -> None:
        """Write the costs of the call into the graph."""
        again = {node: self._saved_again(node) for node in self._nodes}
        seconds = dict(self._second_run(again))
        second_run_bytes = self._second_run_bytes(again)
        freed_after = self._freed_after(again)
        live_bytes, upto = 0.0, dict[str, float]()
        for node in self._nodes:
            live_bytes = upto[node] = live_bytes + freed_after.get(node, 0.0)
        begins = next((node for node in reversed(self._nodes) if _works(self._costs[node])), None)
        for node in self._nodes:
            begin_bytes = second_run_bytes if node == begins else 0.0
            self._change_node(node, upto[node], begin_bytes, seconds.get(node, ()))
        self._change_edges()
        self._bind_functional_ops()
        for node in self._nodes[1:] if together else ():
            self._join(self._nodes[0], node)

    def _change_node(
        self, node: str, live_bytes: float, begin_bytes: float, second_run: Sequence[LayerCosts]
    ) -> None:
        costs, data = self._costs[node], self._graph.nodes[node]
        kept = self._still_kept(node)
        own = max(0.0, costs.saved_bytes - min(costs.saved_bytes, costs.output_bytes - _passing(costs)))
        let_go = max(0.0, min(costs.saved_bytes, costs.output_bytes - _passing(costs)) - kept)
        changed: dict[str, Any] = {"saved_bytes": kept, "lent_bytes": self._kept_outside[node]}
        if costs.output_bytes:
            changed["passing_bytes"] = 0.0 if node in self._drawn else _passing(costs) + let_go
        changed["forward_temp_bytes"] = costs.forward_temp_bytes + own
        changed["temp_bytes"] = max(costs.temp_bytes + live_bytes, begin_bytes, costs.temp_bytes + own)
        if self._graph.says("backward_rise_bytes") and _works(costs):
            changed["backward_rise_bytes"] = max(costs.backward_rise_bytes + live_bytes, begin_bytes)
        for one in second_run:
            changed["backward_s"] = _sum(changed.get("backward_s", costs.backward_s), one.forward_s)
            issued = changed.get("host_backward_s", costs.host_backward_s)
            changed["host_backward_s"] = issued + one.host_forward_s
        data.update(changed)

    def _second_run_bytes(self, again: Mapping[str, float]) -> float:
        """The most that the second run holds: what it has kept so far, and what is read later in it."""
        place = {node: index for index, node in enumerate(self._nodes)}
        kept = passing = most = 0.0
        gone = dict[str, float]()
        for node in self._nodes:
            costs = self._costs[node]
            kept += again[node]
            passing += _passing(costs)
            readers = [place[target] for target in self._graph.adj[node] if target in place]
            last = self._nodes[max([place[node], *readers])]
            gone[last] = gone.get(last, 0.0) + _passing(costs)
            most = max(most, kept + passing + costs.forward_temp_bytes)
            passing -= gone.get(node, 0.0)
        return most

    def _freed_after(self, again: Mapping[str, float]) -> dict[str, float]:
        """By node, the bytes of the second run that its backward frees: its own, and what it kept of others.

        What several keep goes with the first of them in code order, whose backward is the last.
        """
        freed = dict[str, float]()
        for node, size in again.items():
            lent = min(size, self._costs[node].lent_bytes)
            keeper = self._first_keeper.get(node, node)
            freed[node] = freed.get(node, 0.0) + size - lent
            freed[keeper] = freed.get(keeper, 0.0) + lent
        return freed

    def _kept_for(self, *, inside: bool) -> dict[str, float]:
        """By node, the bytes of its output that autograd keeps for readers inside of the call, or others."""
        place = {node: index for index, node in enumerate(self._nodes)}
        wanted: dict[str, float] = {}
        for node in reversed(self._nodes):
            wanted[node], keepers = 0.0, list[str]()
            for target, data in self._graph.adj[node].items():
                edge = EdgeCosts.of(data)
                if edge.order_only:
                    continue
                if not edge.unsaved and (target in self._inside) == inside:
                    wanted[node] = max(wanted[node], edge.bytes)
                    keepers.append(target)
                if target in self._inside and self._costs[target].output_bytes < edge.bytes:  # a view of it
                    wanted[node] = max(wanted[node], wanted[target])
                    keepers += [self._first_keeper[target]] if inside and wanted[target] else []
            if inside and keepers:
                self._first_keeper[node] = min(keepers, key=place.__getitem__)
        return {node: min(size, self._costs[node].output_bytes) for node, size in wanted.items()}

    def _still_kept(self, node: str) -> float:
        """Bytes of a node that are kept from forward on, all the same: for others, or in a cache."""
        costs = self._costs[node]
        drawn_bytes = 0.0
        if node in self._drawn:  # a result and its mask; operators inside that do not draw run again
            drawn_bytes = min(costs.saved_bytes + _passing(costs), 2 * costs.output_bytes)
        return max(self._kept_outside[node], costs.lasting_bytes, drawn_bytes)

    def _newly_kept(self) -> dict[str, float]:
        """By node outside, the bytes of its output that are kept for no other reason than to run again."""
        found = dict[str, float]()
        for node in self._nodes:
            for source, _, data in self._graph.in_edges(node, data=True):
                edge = EdgeCosts.of(data)
                if source not in self._inside and edge.unsaved and not edge.order_only:
                    found[source] = max(found.get(source, 0.0), edge.bytes)
        return found

    def _saved_again(self, node: str) -> float:
        """Bytes that the second run keeps of a node until its backward."""
        costs = self._costs[node]
        for_others = 0.0 if self._kept_inside[node] else costs.lent_bytes
        stays = self._still_kept(node) if node in self._drawn else costs.lasting_bytes
        return max(0.0, costs.saved_bytes - stays - for_others)

    def _second_run(self, again: Mapping[str, float]) -> Iterator[tuple[str, list[LayerCosts]]]:
        """By node whose backward has kernels, the nodes whose second run is counted with it.

        The second run stops when all is there that autograd needs: before a last layer that keeps its input
        only. A node without kernels in backward gets none, since it hands gradients on as they are.
        """
        running: list[LayerCosts] = []
        worker: str | None = None
        found: dict[str, list[LayerCosts]] = {}
        ended = False
        for node in reversed(self._nodes):
            costs = self._costs[node]
            if _works(costs):
                worker = node
            if ended or again[node]:
                running.append(costs)
            ended |= again[node] > 0 or self._keeps_inputs(node)
            if worker is not None:
                found.setdefault(worker, []).extend(running)
                running = []
        yield from found.items()

    def _keeps_inputs(self, node: str) -> bool:
        costs = self._costs[node]
        edges = [EdgeCosts.of(data) for *_, data in self._graph.in_edges(node, data=True)]
        return bool(costs.param_bytes) or any(not edge.unsaved and not edge.order_only for edge in edges)

    def _change_edges(self) -> None:
        """Inside, nothing is kept from forward to backward; what the call is given, all of it."""
        for source, size_bytes in self._newly_kept().items():
            self._keep(source, size_bytes)
        for node in self._nodes:
            for source, _, data in self._graph.in_edges(node, data=True):
                if not EdgeCosts.of(data).order_only:
                    data["unsaved"] = source in self._inside

    def _keep(self, node: str, size_bytes: float) -> None:
        """Keep an output that was passing; of a view, what it is a view of."""
        costs, data = self._graph.costs(node), self._graph.nodes[node]
        if costs.kind == "input":
            return
        passing = _passing(costs)
        more = min(size_bytes, passing)
        if more:
            data.update(
                saved_bytes=costs.saved_bytes + more,
                lent_bytes=costs.lent_bytes + more,
                passing_bytes=passing - more,
            )
        elif costs.output_bytes < size_bytes:
            for base, _, edge in self._graph.in_edges(node, data=True):
                self._keep(base, EdgeCosts.of(edge).bytes)

    def _bind_functional_ops(self) -> None:
        """In a second run, functional ops go with what they read: a plan places none by itself."""
        for node in self._nodes:
            followed = self._graph.nodes[node].pop("follows", None)
            if followed is not None and self._graph.costs(followed).kind != "input":
                self._join(followed, node)

    def _join(self, one: str, other: str) -> None:
        nodes = self._graph.nodes
        group = nodes[one].setdefault("colocate", one)
        old = nodes[other].get("colocate")
        if old is None:
            nodes[other]["colocate"] = group
        elif old != group:
            for node in self._graph:
                if nodes[node].get("colocate") == old:
                    nodes[node]["colocate"] = group


def _works(costs: LayerCosts) -> bool:
    """Whether a node's backward has kernels."""
    seconds = costs.backward_s
    if isinstance(seconds, Mapping):
        seconds = max(seconds.values(), default=0.0)
    return costs.host_backward_s > 0 or seconds > 0


def _fastest_s(seconds: _Seconds) -> float:
    return min(seconds.values(), default=0.0) if isinstance(seconds, Mapping) else seconds


def _passing(costs: LayerCosts) -> float:
    """Bytes of an output that neither autograd nor the model's code keeps."""
    if costs.passing_bytes is None:
        return max(0.0, costs.output_bytes - costs.saved_bytes)
    return costs.passing_bytes


def _sum(one: _Seconds, other: _Seconds) -> _Seconds:
    """Seconds in the form of a node's: a number, or by kind of device."""
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        ones = one if isinstance(one, Mapping) else dict.fromkeys(other, one)  # type: ignore[arg-type]
        others = other if isinstance(other, Mapping) else dict.fromkeys(one, other)  # type: ignore[arg-type]
        return {kind: ones[kind] + others[kind] for kind in ones if kind in others}
    return one + other
