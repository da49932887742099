"""Views in a joint graph: those that show what they are given are left out; others can be made anew.

t(t(w))                w
reshape(x, x.shape)    x              a fifth of the operators of a transformer
detach(x)              x
"""

from typing import Any

import torch
from torch import fx

from baechi.torchlib.private.operators import UNSAFE_VIEW

_aten = torch.ops.aten

_ALWAYS = frozenset({_aten.detach.default, _aten.alias.default, _aten.lift_fresh.default})

_RESHAPES = frozenset({_aten.view.default, UNSAFE_VIEW, _aten.expand.default, _aten.slice.Tensor})
"""They show what they are given where its shape stays."""

_SWAPS = frozenset({_aten.t.default, _aten.transpose.int})
"""Done twice, they do nothing."""

_VIEWS = frozenset(
    {
        *_SWAPS,
        _aten.view.default,
        _aten.permute.default,
        _aten.expand.default,
        _aten.unsqueeze.default,
        _aten.squeeze.dim,
        _aten.squeeze.dims,
    }
)
"""They show all of a tensor, and need no memory."""


def is_view(node: fx.Node) -> bool:
    """Whether an operation shows what one other has made, all of it."""
    return node.op == "call_function" and node.target in _VIEWS and len(node.all_input_nodes) == 1


def leave_out_views(graph: fx.Graph) -> None:
    """Leave out the operations that show what they are given, as it is; what is returned stays."""
    (end,) = graph.find_nodes(op="output")
    returned = set(end.all_input_nodes)
    for node in list(graph.nodes):
        if node.op == "call_function" and node not in returned:
            shown = _shown(node)
            if shown is not None:
                node.replace_all_uses_with(shown)
                graph.erase_node(node)


def _shown(node: fx.Node) -> fx.Node | None:
    """What an operation gives, if it was there before."""
    if node.target in _ALWAYS:
        return _tensor(node.args[0])
    source = _tensor(node.args[0]) if node.args else None
    if source is None or node.kwargs:
        return None
    if node.target in _RESHAPES:
        mine, before = node.meta.get("val"), source.meta.get("val")
        if not isinstance(mine, torch.Tensor) or not isinstance(before, torch.Tensor):
            return None
        return source if mine.shape == before.shape else None
    if node.target in _SWAPS and source.target is node.target and _dims(node) == _dims(source):
        return _tensor(source.args[0])
    return None


def _tensor(value: Any) -> fx.Node | None:
    return value if isinstance(value, fx.Node) else None


def _dims(node: fx.Node) -> Any:
    """The dimensions that are swapped."""
    ndim = node.meta["val"].dim()
    return {dim % ndim for dim in node.args[1:] if isinstance(dim, int)} if ndim else set()
