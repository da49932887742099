"""Numbers of Python that code counts (`self.calls += 1`): apart from a graph, which is of tensors alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from baechi.errors import CompileError
from baechi.run.user_line import line_where_made


@dataclass(frozen=True, eq=False)
class Counted:
    """The numbers of a captured graph.

    Args:
        module: makes those that it returns of those that it is given.
        given: of each input of the graph, whether it is a number.
        returned: of each output, whether it is one.
    """

    module: fx.GraphModule
    given: Sequence[bool]
    returned: Sequence[bool]

    def apart(self, flat: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The tensors among the graph's inputs, and the numbers that it returns."""
        numbers = [one for one, is_number in zip(flat, self.given, strict=True) if is_number]
        tensors = [one for one, is_number in zip(flat, self.given, strict=True) if not is_number]
        return tensors, list(self.module(*numbers)) if any(self.given) else []

    def together(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
        """The graph's outputs."""
        left, right = iter(tensors), iter(numbers)
        return [next(right) if is_number else next(left) for is_number in self.returned]


def counted(module: fx.GraphModule) -> tuple[fx.GraphModule, Counted]:
    """A captured graph without its numbers, and they."""
    numbers, tensors = dict[fx.Node, fx.Node](), dict[fx.Node, fx.Node]()
    graph, other = fx.Graph(), fx.Graph()
    (end,) = module.graph.find_nodes(op="output")
    places, outputs = module.graph.find_nodes(op="placeholder"), list(end.args[0])
    for node in module.graph.nodes:
        read = [one in numbers for one in node.all_input_nodes]
        if _is_number(node) and (all(read) if read else node in places):
            numbers[node] = graph.node_copy(node, numbers.__getitem__)
        elif node is not end:
            if any(read):
                where = line_where_made(node)
                raise CompileError(
                    f"its code counts calls in a number of Python, and computes with it"
                    f"{where and f' ({where})'}: make it a buffer, self.register_buffer('count', "
                    "torch.zeros(())), and write self.count += 1"
                )
            tensors[node] = other.node_copy(node, tensors.__getitem__)
    graph.output(tuple([numbers[one] for one in outputs if one in numbers]))
    found = Counted(
        fx.GraphModule({}, graph), [one in numbers for one in places], [one in numbers for one in outputs]
    )
    if not numbers:
        return module, found
    other.output(tuple([tensors[one] for one in outputs if one in tensors]))
    return fx.GraphModule(module, other), found


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), (int, torch.SymInt))
