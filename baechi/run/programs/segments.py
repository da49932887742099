"""A joint graph, cut by the plan: a segment for each run, and for the backward of each stage.

position    0     1     2     3         runs in the code's order, then stages from the last one back
segment     F0 ─▶ F1 ─▶ B1 ─▶ B0        an operation is in that of its layer, and reads from none later
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx

from baechi.records.pipeline.units import Task, Units
from baechi.run.programs.joint import Backward, Joint
from baechi.run.programs.names import REGION, RUN
from baechi.run.programs.views import is_view
from baechi.torchlib.operators.facts import draws
from baechi.torchlib.private.operators import UNSAFE_VIEW, schema_of
from baechi.torchlib.tensors.layout import contiguous_strides

_GETITEM = "getitem"

_AS_IT_LIES: dict[Any, Any] = dict.fromkeys(
    (torch.ops.aten.view.default, UNSAFE_VIEW), torch.ops.aten.reshape.default
)
"""Shapes are inferred, and strides may be others than a kernel gives: what is a view by these may be none."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Operations that run together.

    Args:
        position: when, among the segments of a microbatch.
        module: they, as a function of what they read.
        reads: the nodes whose values they read.
        makes: the nodes whose values others read, in the order in which the module returns them.
        random: whether some draw random numbers.
        adding: from nodes that it makes, a module that adds their values to what it is given behind what they
            read, as soon as they are made, and returns None for them.
    """

    position: int
    module: fx.GraphModule
    reads: tuple[fx.Node, ...]
    makes: tuple[fx.Node, ...]
    random: bool
    adding: Callable[[Sequence[fx.Node]], fx.GraphModule]


class Cutting:
    """Where a joint graph is cut.

    Args:
        joint: the graph; its operations have notes of their runs.
        units: the plan's runs and stages.
        device_at: by device's number, the device that operators without inputs are told.
    """

    def __init__(self, joint: Joint, units: Units, device_at: Callable[[int], torch.device]) -> None:
        self.joint, self.units, self._device_at = joint, units, device_at
        self._runs = len(units.stage_of_run)
        self._order = {stage: place for place, stage in enumerate(units.backward_order)}
        self._nodes = list(joint.module.graph.nodes)
        self._forward = self._forward_nodes()
        self.position = self._positions()
        self._passing = self._passing_nodes()

    @cached_property
    def positions(self) -> int:
        """How many positions there are."""
        return self._runs + len(self._order)

    def position_of(self, task: Task) -> int:
        """The position of a task's segment."""
        return task.unit if task.phase == "forward" else self._runs + self._order[task.unit]

    def device_of(self, position: int) -> int:
        """The number of the device of a position."""
        if position < self._runs:
            return self.units.device_of[self.units.stage_of_run[position]]
        return self.units.device_of[self.units.backward_order[position - self._runs]]

    def is_forward(self, position: int) -> bool:
        """Whether a position is one of a run."""
        return position < self._runs

    def runs_of(self, position: int) -> tuple[int, ...]:
        """The runs whose layers a position goes through."""
        if position < self._runs:
            return (position,)
        units = self.units
        stage = units.backward_order[position - self._runs]
        return units.runs_of[stage if stage < units.whole else units.weights_of[stage - units.whole]]

    def is_value(self, node: fx.Node) -> bool:
        """Whether a node is no operation: a constant, or an input."""
        return node not in self.position

    def segments(
        self, backward: Backward, gradients: Mapping[int, Sequence[fx.Node]], *, forward: bool
    ) -> dict[int, Segment]:
        """The segments of one direction."""
        joint = self.joint
        ends = [node for node in joint.outputs if isinstance(node, fx.Node)]
        ends += [*joint.written.values(), *[node for terms in gradients.values() for node in terms]]
        ends = list(map(backward.of, ends))
        run = [node for node in self._nodes if _runs_anyway(node) and node not in backward.none]
        needed = self._ancestors([*ends, *run], backward)
        found: dict[int, list[fx.Node]] = {}
        for node in self._nodes:
            if node in needed and node in self.position:
                found.setdefault(self.position[node], []).append(node)
        read = set(ends)
        for position, nodes in found.items():
            anew, waiting = set[fx.Node](), list(nodes)
            while waiting:
                for one in self._inputs(waiting.pop(), backward):
                    if self.position.get(one, position) == position or one in anew:
                        continue
                    if self._is_shown_at(one, position, backward) or self._runs_again_at(one, position):
                        anew.add(one)
                        waiting.append(one)
                    else:
                        read.add(one)
            if anew:
                found[position] = self._where_read(nodes, anew, backward)
        return {
            position: self._segment(position, found[position], read, backward)
            for position in sorted(found)
            if self.is_forward(position) == forward
        }

    # --- positions

    def _forward_nodes(self) -> set[fx.Node]:
        """What the outputs need; what draws, which backward must not do again; and checks of either."""
        joint = self.joint
        ends = [node for node in joint.outputs if isinstance(node, fx.Node)]
        ends += joint.written.values()
        later = {*joint.tangents.values(), *joint.after}
        for node in self._nodes:
            if not later.isdisjoint(node.all_input_nodes):
                later.add(node)
            elif _runs_anyway(node):
                ends.append(node)
        found: set[fx.Node] = set()
        while ends:
            node = ends.pop()
            if node not in found:
                found.add(node)
                ends += node.all_input_nodes
        for node in self._nodes:  # parts of a result are where it is
            if _is_part(node) and node.all_input_nodes[0] in found:
                found.add(node)
        return found

    def _positions(self) -> dict[fx.Node, int]:
        found: dict[fx.Node, int] = {}
        operations = [node for node in self._nodes if node.op == "call_function"]
        for node in operations:
            run = node.meta.get("custom", {}).get(RUN)
            before = [found[one] for one in node.all_input_nodes if one in found]
            if _is_part(node):
                if before:
                    found[node] = before[0]
            elif run is not None:
                found[node] = max([self._own_position(node, run), *before])
            elif before:
                least = 0 if node in self._forward else self._runs
                found[node] = max([least, *before])
        for node in reversed(operations):
            if node not in found:
                least = 0 if node in self._forward else self._runs
                found[node] = min([found[one] for one in node.users if one in found], default=least)
        drawn = 0
        for node in operations:  # none reads from a later one, and numbers are drawn in the code's order
            if not _is_part(node):
                before = [found[one] for one in node.all_input_nodes if one in found]
                found[node] = max([found[node], *before])
                if _draws(node):
                    found[node] = drawn = max(found[node], drawn)
            else:
                found[node] = found[node.all_input_nodes[0]]
        for stage, weights in self.units.weights_stage.items():
            here, later = (self._runs + self._order[one] for one in (stage, weights))
            self._put_off([node for node in operations if found[node] == here], found, later)
        return found

    def _put_off(self, nodes: Sequence[fx.Node], found: dict[fx.Node, int], later: int) -> None:
        """Where the backward of weights is apart: what no other segment waits for comes later."""
        needed = set[fx.Node]()
        for node in reversed(nodes):
            if any(one in needed or found.get(one, found[node]) != found[node] for one in node.users):
                needed.add(node)
        for node in nodes:
            if node not in needed and not (_is_part(node) and node.all_input_nodes[0] in needed):
                found[node] = later

    def _own_position(self, node: fx.Node, run: int) -> int:
        if node in self._forward:
            return run
        return self._runs + self._order[self.units.stage_of_run[run]]

    # --- segments

    def _inputs(self, node: fx.Node, backward: Backward) -> list[fx.Node]:
        found = list(map(backward.of, node.all_input_nodes))
        return [one for one in found if one not in backward.none]

    def _ancestors(self, ends: Iterable[fx.Node], backward: Backward) -> set[fx.Node]:
        waiting, found = list(ends), set[fx.Node]()
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += self._inputs(node, backward)
        return found

    def _where_read(self, nodes: Sequence[fx.Node], anew: set[fx.Node], backward: Backward) -> list[fx.Node]:
        """Nodes, with views that are made anew right before what reads them first."""
        found: dict[fx.Node, None] = {}
        for node in nodes:
            waiting = [node]
            while waiting:
                before = [one for one in self._inputs(waiting[-1], backward) if one in anew - found.keys()]
                if before:
                    waiting += before
                else:
                    found[waiting.pop()] = None
        return list(found)

    def _is_shown_at(self, node: fx.Node, position: int, backward: Backward) -> bool:
        """Whether a node shows what lies at the device of a position: it is made anew there."""
        if not is_view(node) or backward.of(node) is not node:
            return False
        (source,) = self._inputs(node, backward)
        where = self.position.get(source)
        return where is None or self.device_of(where) == self.device_of(position)

    def _runs_again_at(self, node: fx.Node, position: int) -> bool:
        """Whether a backward computes anew what it reads of a forward, since a region runs again."""
        if self.is_forward(position) or node not in self._passing:
            return False
        return self.device_of(self.position[node]) == self.device_of(position)

    def _passing_nodes(self) -> frozenset[fx.Node]:
        """What lies within a region that backward runs again, and is not kept from its first run.

        Kept is what a region is given, what it gives to others, what is drawn, and what is made of inputs
        that are written: they have other values when the region runs again.
        """
        if self.units.weights_stage:  # both halves of a backward would run it again
            return frozenset()
        written = {self.joint.inputs[place] for place in self.joint.written}
        kept = {node for node in self.joint.outputs if isinstance(node, fx.Node)}
        kept.update(self.joint.written.values())
        within = [node for node in self._nodes if node in self._forward and _region_of(node)]
        for node in self._nodes if within else ():
            if not written.isdisjoint(node.all_input_nodes):
                kept.add(node)
                if is_view(node):
                    written.add(node)
        for node in reversed(within):
            for one in node.users:
                if one in self._forward and _region_of(one) != _region_of(node):
                    kept.add(node)
            if _draws(node) or any(one in kept for one in node.users if is_view(one) or _is_part(one)):
                kept.add(node)
        of_kept = {one for node in kept for one in node.users if _is_part(one)}
        return frozenset(within) - kept - of_kept

    def _segment(
        self, position: int, nodes: Sequence[fx.Node], read: set[fx.Node], backward: Backward
    ) -> Segment:
        makes = tuple([node for node in nodes if node in read and self.position[node] == position])
        module, reads = self._module(position, nodes, makes, backward)

        def adding(added: Sequence[fx.Node]) -> fx.GraphModule:
            return self._module(position, nodes, makes, backward, added)[0]

        return Segment(position, module, reads, makes, any(map(_draws, nodes)), adding)

    def _module(
        self,
        position: int,
        nodes: Sequence[fx.Node],
        makes: Sequence[fx.Node],
        backward: Backward,
        added: Sequence[fx.Node] = (),
    ) -> tuple[fx.GraphModule, tuple[fx.Node, ...]]:
        graph, here, reads = fx.Graph(), dict[fx.Node, fx.Node](), list[fx.Node]()
        device = self._device_at(self.device_of(position))
        inside = set(nodes)
        for node in nodes:
            for one in self._inputs(node, backward):
                if one not in inside and one not in here:
                    if self._is_module(one):
                        continue
                    here[one] = graph.placeholder(f"read_{len(reads)}")
                    here[one].meta = {"val": one.meta.get("val")}
                    reads.append(one)

        totals = {node: graph.placeholder(f"total_{number}") for number, node in enumerate(added)}
        for node, total in totals.items():
            total.meta = {"val": node.meta.get("val")}

        def made(node: fx.Node) -> fx.Node:
            found = backward.of(node)
            if found not in here:
                here[found] = (
                    graph.node_copy(found) if self._is_module(found) else _zeros(graph, found, device)
                )
            return here[found]

        for node in nodes:
            copied = graph.node_copy(node, made)
            copied.target = _AS_IT_LIES.get(copied.target, copied.target)
            _set_device(copied, node, device)
            here[node] = copied
            if node in totals:
                graph.call_function(torch.ops.aten.add_.Tensor, (totals[node], copied))
        graph.output(tuple([None if node in totals else here[node] for node in makes]))
        return fx.GraphModule(self.joint.module, graph), tuple(reads)

    def _is_module(self, node: fx.Node) -> bool:
        """Whether a node is no value but a graph inside of the graph."""
        if node.op != "get_attr":
            return False
        found: Any = self.joint.module
        for name in str(node.target).split("."):
            found = getattr(found, name)
        return isinstance(found, torch.nn.Module)


def _region_of(node: fx.Node) -> str | None:
    """The region that an operation is in, which backward runs again."""
    if _is_part(node):
        node = node.all_input_nodes[0]
    found: str | None = node.meta.get("custom", {}).get(REGION)
    return found


def _draws(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and draws(node.target, node.args, node.kwargs)


def _runs_anyway(node: fx.Node) -> bool:
    """Whether a node runs though nothing reads it: it draws, or it returns nothing, and may raise."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return _draws(node) or not schema_of(node.target).returns


def _is_part(node: fx.Node) -> bool:
    """Whether a node is one of several results of the node that it reads."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == _GETITEM


def _zeros(graph: fx.Graph, node: fx.Node, device: torch.device) -> fx.Node:
    """Zeros that lie in memory as the value of a node would: kernels count on it."""
    value = node.meta["val"]
    shape, strides = list(value.shape), list(value.stride())
    in_rows = strides == contiguous_strides(shape) or not value.numel()
    span = 1 + sum([(size - 1) * stride for size, stride in zip(shape, strides, strict=True)])
    full, options = torch.ops.aten.full.default, {"dtype": value.dtype, "device": device}
    made = graph.call_function(full, (shape if in_rows else [span], 0), options)
    if not in_rows:
        made = graph.call_function(torch.ops.aten.as_strided.default, (made, shape, strides))
    made.meta = {"val": value}
    return made


def _set_device(copied: fx.Node, node: fx.Node, device: torch.device) -> None:
    """Let an operator that is told a device be told its segment's: the graph names those of the capture."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return

    def own(value: Any) -> Any:
        return device if isinstance(value, torch.device) and value.type != "meta" else value

    copied.args = tuple(map(own, copied.args))
    copied.kwargs = {key: own(value) for key, value in copied.kwargs.items()}
    takes = any(argument.name == "device" for argument in schema_of(node.target).arguments)
    if takes and not node.all_input_nodes and "device" not in copied.kwargs:
        copied.kwargs = {**copied.kwargs, "device": device}


def constants_of(joint: Joint) -> Mapping[fx.Node, torch.Tensor]:
    """By node, the constants of a joint graph that are tensors."""
    found = {}
    for node in joint.module.graph.nodes:
        if node.op == "get_attr":
            value: Any = joint.module
            for name in str(node.target).split("."):
                value = getattr(value, name)
            if isinstance(value, torch.Tensor):
                found[node] = value
    return found
