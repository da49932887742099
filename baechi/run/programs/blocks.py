"""Equal blocks of a segment are compiled once: weights are inputs, so one program serves all of them.

segment    embed ─▶ block 0 ─▶ block 1 ─▶ block 2 ─▶ head
compiled   embed,   block,                           head       three instead of five
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch
from torch import fx

from baechi.run.programs.code import code_of, text_of
from baechi.run.programs.names import BLOCK

Run = Callable[[list[Any]], Sequence[Any]]

Compile = Callable[[fx.GraphModule], Run]
"""Compiles a graph, for inputs with the strides that their nodes say."""

Check = Literal["never", "once", "always"]
"""When it is looked whether an input has the strides that its node says.

Guards say it of weights. What programs make has the same strides at each call: shapes are inferred, and
a kernel's strides may be others, so the first call tells. A written buffer is the user's, or a program's.
"""

_known: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
"""What was compiled in this process, as long as some program runs it."""


@dataclass(frozen=True, eq=False)
class _Piece:
    """Operations of a block, as a graph of their own.

    Args:
        module: they.
        reads: the nodes of the segment whose values they read.
        makes: the nodes whose values others read.
    """

    module: fx.GraphModule
    reads: Sequence[fx.Node]
    makes: Sequence[fx.Node]


def compiled_by_blocks(
    module: fx.GraphModule, checks: Sequence[Check], compile: Compile, key: Hashable, name: str
) -> Run:
    """Compile a segment: block by block if some are equal.

    Args:
        module: the segment.
        checks: of each input, when its strides are looked at.
        compile: compiles a graph.
        key: what compiled graphs have to have in common beside their operators.
        name: of the segment.
    """
    given = dict(zip(module.graph.find_nodes(op="placeholder"), checks, strict=True))
    pieces = _pieces(module)
    keys = [_key(piece, key) for piece in pieces]
    if len(set(keys)) == len(keys) and not any(one in _known for one in keys):
        whole = _Piece(module, list(given), ())
        return _compiled(whole, given, compile, _key(whole, key))
    graph, here = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in given:
        here[node] = graph.placeholder(node.name)
    for piece, one in zip(pieces, keys, strict=True):
        run = _compiled(piece, given, compile, one)
        made = graph.call_function(run, ([here[node] for node in piece.reads],))
        for number, node in enumerate(piece.makes):
            here[node] = graph.call_function(getitem, (made, number))
    (end,) = module.graph.find_nodes(op="output")
    graph.output(fx.node.map_arg(end.args[0], here.__getitem__))
    return code_of(fx.GraphModule(module, graph), name)


def _compiled(piece: _Piece, given: dict[fx.Node, Check], compile: Compile, key: Hashable) -> Run:
    found: Run | None = _known.get(key)
    if found is None:
        found = _known[key] = compile(piece.module)
    return _laid(found, piece.reads, [given.get(node, "once") for node in piece.reads])


def _laid(run: Run, reads: Sequence[fx.Node], checks: Sequence[Check]) -> Run:
    """The same for inputs with other strides than those of their nodes."""
    looks = [(number, node.meta["val"]) for number, node in enumerate(reads)]
    unsure = [
        (number, like.shape, like.stride(), check)
        for (number, like), check in zip(looks, checks, strict=True)
        if check != "never"
    ]

    def laid(values: list[Any]) -> Sequence[Any]:
        nonlocal unsure
        later = []
        for one in unsure:
            number, shape, stride, check = one
            value = values[number]
            if value.stride() != stride:
                same = torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
                values[number] = same.copy_(value)
            elif check == "once":
                continue
            later.append(one)
        unsure = later
        return run(values)

    return laid


def _key(piece: _Piece, more: Hashable) -> Hashable:
    """What pieces have in common that one program serves."""
    looks = []
    for node in piece.reads:
        value = node.meta["val"]
        looks.append((value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else None)
    return more, tuple(looks), text_of(piece.module)


def _pieces(module: fx.GraphModule) -> list[_Piece]:
    """A segment in pieces: each reads only of those before."""
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    number_of: dict[fx.Node, int] = {}
    block, last = None, 0
    for node in nodes:
        mine = node.meta.get("custom", {}).get(BLOCK)
        if mine is not None and mine != block:
            block, last = mine, last + 1
        number_of[node] = last
    found: dict[int, list[fx.Node]] = {}
    for node in nodes:
        found.setdefault(number_of[node], []).append(node)
    return [_piece(module, each, number_of) for each in found.values()]


def _piece(module: fx.GraphModule, nodes: Sequence[fx.Node], number_of: dict[fx.Node, int]) -> _Piece:
    graph, here, reads = fx.Graph(), dict[fx.Node, fx.Node](), list[fx.Node]()
    inside = set(nodes)
    for node in nodes:
        for one in node.all_input_nodes:
            if one not in inside and one not in here:
                if one.op == "get_attr":
                    here[one] = graph.node_copy(one)
                    continue
                here[one] = graph.placeholder(f"read_{len(reads)}")
                here[one].meta = {"val": one.meta.get("val")}
                reads.append(one)
    for node in nodes:
        here[node] = graph.node_copy(node, here.__getitem__)
    makes = [node for node in nodes if any(user not in inside for user in node.users)]
    graph.output(tuple([here[node] for node in makes]))
    return _Piece(fx.GraphModule(module, graph), reads, makes)
