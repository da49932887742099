"""A segment as a function of Python: a line for each operator, called through C, and nothing in between.

def program(values):
    read_0, read_1 = values; values.clear()      a value goes after its last use
    mm = torch_mm(read_0, read_1)
    del read_0, read_1
    return (mm,)
"""

from collections.abc import Callable, Hashable, Sequence
from math import isfinite
from operator import getitem
from typing import Any

import torch
from torch import fx

from baechi.torchlib.operators.bindings import binding_of

_LITERALS = (int, bool, str, type(None), type(Ellipsis))


class _Code:
    """Writes a segment's code.

    Args:
        module: the segment.
        function_of: what a line calls; None for the operator itself.

    Attributes:
        text: the code.
        others: by name, what is not written in it.
    """

    def __init__(
        self, module: fx.GraphModule, function_of: Callable[[fx.Node], Callable[..., Any]] | None = None
    ) -> None:
        self._module, self._function_of = module, function_of
        self._names: dict[fx.Node, str] = {}
        self._name_of: dict[Hashable, str] = {}
        self.others: dict[str, Any] = {}
        self.text = self._written()

    def _written(self) -> str:
        nodes = list(self._module.graph.nodes)
        last: dict[fx.Node, fx.Node] = {one: node for node in nodes for one in node.all_input_nodes}
        given = [node for node in nodes if node.op == "placeholder"]
        for number, node in enumerate(nodes):
            self._names[node] = f"v{number}"
        lines = ["def program(values):"]
        if given:
            lines += [f"    {', '.join([self._names[node] for node in given])}, = values"]
        lines += ["    values.clear()"]
        for node in nodes:
            if node.op == "output":
                lines += [f"    return {self._text(tuple(node.args[0]))}"]
            elif node.op != "placeholder":
                lines += [f"    {self._names[node]} = {self._expression(node)}"]
            ended = [self._names[one] for one in node.all_input_nodes if last[one] is node]
            unread = [self._names[node]] if node not in last and node.op != "output" else []
            if node.op != "output" and (ended or unread) and node.op != "get_attr":
                lines += [f"    del {', '.join([*ended, *unread])}"]
        return "\n".join(lines)

    def _expression(self, node: fx.Node) -> str:
        if node.op == "get_attr":
            return self._other(self._module.get_submodule(str(node.target)))
        if node.target is getitem:
            return f"{self._text(node.args[0])}[{self._text(node.args[1])}]"
        function = self._other(node.target if self._function_of is None else self._function_of(node))
        given = [*map(self._text, node.args)]
        given += [f"{name}={self._text(value)}" for name, value in node.kwargs.items()]
        return f"{function}({', '.join(given)})"

    def _text(self, value: Any) -> str:
        """A value as an expression."""
        if isinstance(value, fx.Node):
            return self._names[value]
        if isinstance(value, list):
            return f"[{', '.join(map(self._text, value))}]"
        if isinstance(value, tuple):
            return f"({''.join([f'{self._text(one)}, ' for one in value])})"
        if isinstance(value, dict):
            return f"{{{', '.join([f'{key!r}: {self._text(one)}' for key, one in value.items()])}}}"
        is_literal = type(value) in _LITERALS or (type(value) is float and isfinite(value))
        return repr(value) if is_literal else self._other(value)

    def _other(self, value: Any) -> str:
        key = (type(value), value) if isinstance(value, Hashable) else id(value)
        name = self._name_of.setdefault(key, f"g{len(self._name_of)}")
        self.others[name] = value
        return name


def code_of(module: fx.GraphModule, name: str) -> Callable[[list[Any]], Sequence[Any]]:
    """A segment as a function of a list of values, which it empties.

    Args:
        module: the segment; its nodes say what their values look like.
        name: where errors say that they come from.
    """
    code = _Code(module, _function_of)
    made = dict(code.others)
    exec(compile(code.text, f"<{name}>", "exec"), made)
    found: Callable[[list[Any]], Sequence[Any]] = made["program"]
    return found


def text_of(module: fx.GraphModule) -> Hashable:
    """What segments that compute the same of their inputs have in common."""
    code = _Code(module)
    others = [one if isinstance(one, Hashable) else object() for one in code.others.values()]
    return code.text, tuple(others)


def _function_of(node: fx.Node) -> Callable[..., Any]:
    """What a line calls."""
    assert node.op == "call_function", node.format_node()
    looks: list[Any] = []

    def look(one: fx.Node) -> Any:
        looks.append(one.meta.get("val"))
        return looks[-1]

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), look)
    known = all(isinstance(one, torch.Tensor) for one in looks)
    target: Callable[..., Any] = node.target  # type: ignore[assignment]
    return binding_of(target, args, kwargs) if known else target
