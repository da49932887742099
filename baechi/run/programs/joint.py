"""A captured graph with its backward: one graph of operators, without writes.

    captured    h = linear(x, w); h.add_(1); loss = h.sum()          torch functions, as the code calls them
    joint       x, w, tangent ─▶ loss, gradient of w                 operators; what is written is an output

The backward is linear in the tangents (the gradients of outputs). So where none comes in, none goes out, and
a sum with one is its other side: that is how the backward for some of the outputs is made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from baechi.errors import CompileError
from baechi.run.programs.views import leave_out_views
from baechi.run.user_line import line_where_made
from baechi.torchlib.private.graphs import (
    devices_ignored,
    is_own_output,
    is_written_without_gradient,
    joint_graph,
    role_of,
)
from baechi.torchlib.tensors.layout import may_show_twice

_ADD = torch.ops.aten.add.Tensor
_GIVEN = "input", "tangent", "after"


@dataclass(frozen=True, eq=False)
class Joint:
    """A graph of operators with its backward.

    Args:
        module: the graph; it owns constants.
        inputs: by input of the captured graph, its node; None if nothing reads it.
        tangents: by output, the node of its gradient; those that get none are missing.
        outputs: by output of the captured graph, its node; an int is the input that is returned as it is.
        written: by input, its value after the call.
        gradients: by input, its gradient.
        after: the nodes of gradients that never come in: those of weights that are written.
    """

    module: fx.GraphModule
    inputs: Sequence[fx.Node | None]
    tangents: Mapping[int, fx.Node]
    outputs: Sequence[fx.Node | int]
    written: Mapping[int, fx.Node]
    gradients: Mapping[int, fx.Node]
    after: frozenset[fx.Node] = frozenset()
    _zeros: dict[frozenset[int], "Backward"] = field(default_factory=dict)

    def backward(self, given: frozenset[int]) -> "Backward":
        """The backward for gradients of some outputs."""
        if given not in self._zeros:
            self._zeros[given] = _backward(self, given)
        return self._zeros[given]


@dataclass(frozen=True, eq=False)
class Backward:
    """What of a joint graph runs for gradients of some outputs.

    Args:
        stands: by node, another that stands for it, since one side of a sum is none.
        gradients: by input, its gradient; inputs that get none are missing.
        none: nodes without a value.
        zeros: of these, those that something reads beside values: they are filled with zeros.
    """

    stands: Mapping[fx.Node, fx.Node]
    gradients: Mapping[int, fx.Node]
    none: frozenset[fx.Node]
    zeros: frozenset[fx.Node]

    def of(self, node: fx.Node) -> fx.Node:
        """The node that stands for another one; itself if none does."""
        while node in self.stands:
            node = self.stands[node]
        return node


def joined(
    captured: fx.GraphModule,
    args: Sequence[Any],
    decompositions: dict[Any, Any],
    assigned: Mapping[int, int],
) -> Joint:
    """Trace a captured graph with its backward.

    Args:
        captured: the graph.
        args: its inputs.
        decompositions: by operator, what it is to be made of.
        assigned: by input that is a buffer which is assigned anew, the output that it becomes.
    """
    cloned: frozenset[int] = frozenset()
    while True:
        graph, returned, made = _prepared(captured, cloned)
        with devices_ignored(), joint_graph(graph, args, decompositions) as (module, notes):
            infos, given = list(notes.output_info), list(notes.input_info)
            views = {number for place, number in enumerate(made) if not is_own_output(infos[place])}
        views |= {made[number] for number in _tangents_shown_twice(module)}
        if views <= cloned:
            quiet = [is_written_without_gradient(info) for info in given]
            _refuse_writes(captured, module, quiet)
            joint = _read(module, len(args), returned, made)
            return _with_assigned(joint, assigned)
        cloned |= views  # outputs that share memory with others, or within, get memory of their own


def _tangents_shown_twice(module: fx.GraphModule) -> list[int]:
    """The numbers of gradients of outputs that have no memory for each element (those of `unfold`)."""
    found = []
    for node in module.graph.find_nodes(op="placeholder"):
        role = role_of(node.meta["desc"])
        if role is not None and role.kind == "tangent" and may_show_twice(node.meta["val"]):
            found.append(role.index)
    return found


def _prepared(
    captured: fx.GraphModule, cloned: frozenset[int]
) -> tuple[fx.GraphModule, list[int | None], list[int]]:
    """The graph without outputs that are inputs; those inputs; and the numbers of the other outputs."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(captured.graph, copied)
    places = [node for node in captured.graph.nodes if node.op == "placeholder"]
    (end,) = [node for node in captured.graph.nodes if node.op == "output"]
    outputs = list(end.args[0])
    returned: list[int | None] = []
    kept, numbers = [], []
    for number, one in enumerate(outputs):
        if one in places:
            returned.append(places.index(one))
            continue
        returned.append(None)
        value = copied[one]
        if number in cloned:
            value = graph.call_method("clone", (value,))
            value.meta = dict(copied[one].meta)
        kept.append(value)
        numbers.append(number)
    graph.output(tuple(kept))
    return fx.GraphModule(captured, graph), returned, numbers


def _refuse_writes(captured: fx.GraphModule, module: fx.GraphModule, quiet: Sequence[bool]) -> None:
    """Raise if inputs with gradients are written so that gradients follow."""
    places = captured.graph.find_nodes(op="placeholder")
    for node in module.graph.find_nodes(op="placeholder"):
        role = role_of(node.meta["desc"])
        if role is not None and role.kind == "after" and not quiet[role.index]:
            where = line_where_made(next(iter(places[role.index].users)))
            raise CompileError(
                f"its code writes an input that has a gradient{where and f' (at {where})'}: write a copy, "
                "x = x.clone()"
            )


def _read(module: fx.GraphModule, inputs: int, returned: list[int | None], made: list[int]) -> Joint:
    nodes: list[fx.Node | None] = [None] * inputs
    tangents: dict[int, fx.Node] = {}
    after: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            role = role_of(node.meta["desc"])
            if role is None or role.kind not in _GIVEN:
                raise CompileError(
                    "what its code writes shares memory with other buffers or inputs, so clone() it "
                    f"(an input of its graph is a {role and role.kind})"
                )
            if role.kind == "input":
                nodes[role.index] = node
            elif role.kind == "after":
                after.add(node)
            else:
                tangents[made[role.index]] = node
    leave_out_views(module.graph)
    (end,) = [node for node in module.graph.nodes if node.op == "output"]
    outputs: list[Any] = list(returned)
    written: dict[int, fx.Node] = {}
    gradients: dict[int, fx.Node] = {}
    for node, descriptor in zip(end.args[0], end.meta["desc"], strict=True):
        role = role_of(descriptor)
        if role is None or node is None:
            continue
        if role.kind == "output":
            outputs[made[role.index]] = node
        elif role.kind == "written":
            written[role.index] = node
        elif role.kind == "gradient":
            gradients[role.index] = node
        else:
            raise CompileError(f"an output of its graph is a {role.kind}, which programs do not know")
    return Joint(module, tuple(nodes), tangents, tuple(outputs), written, gradients, frozenset(after))


def _with_assigned(joint: Joint, assigned: Mapping[int, int]) -> Joint:
    """Microbatches read the buffer that the one before them assigned: as if it had been written."""
    written = dict(joint.written)
    for place, number in assigned.items():
        node = joint.outputs[number]
        if place in written or isinstance(node, int) or number in joint.tangents:
            raise CompileError(
                "a buffer is assigned a tensor that has a gradient, or is an input, or is written beside that"
            )
        written[place] = node
    return replace(joint, written=written)


def _backward(joint: Joint, given: frozenset[int]) -> Backward:
    none = {node for number, node in joint.tangents.items() if number not in given} | joint.after
    linear = {*joint.tangents.values(), *joint.after}
    stands: dict[fx.Node, fx.Node] = {}
    zeros: set[fx.Node] = set()
    for node in joint.module.graph.nodes:
        if node.op != "call_function":
            continue
        carried = [one for one in node.all_input_nodes if one in linear]
        if not carried:
            continue
        linear.add(node)
        missing = [one for one in carried if _first(stands, one) in none]
        if len(missing) == len(carried):
            none.add(node)
        elif missing and node.target is _ADD and not node.kwargs and _lie_alike(node, *node.args[:2]):
            (stands[node],) = [one for one in node.args[:2] if one not in missing]
        else:
            zeros.update(_first(stands, one) for one in missing)
    gradients = {}
    for number, node in joint.gradients.items():
        found = _first(stands, node)
        if found not in none:
            gradients[number] = found
    return Backward(stands, gradients, frozenset(none), frozenset(zeros))


def _lie_alike(*nodes: fx.Node) -> bool:
    """Whether values have the same strides, on which kernels count that read them."""
    return len({node.meta["val"].stride() for node in nodes}) == 1


def _first(stands: Mapping[fx.Node, fx.Node], node: fx.Node) -> fx.Node:
    while node in stands:
        node = stands[node]
    return node
