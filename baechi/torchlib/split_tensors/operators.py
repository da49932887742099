"""What each operator does on tensors in pieces: by its name, else by its tags, else it raises.

    element by element    piece by piece, each on its device        add, mul, lerp, addcdiv, sqrt, ...
    of lists              one call a device (`lists`)               _foreach_*, _fused_*
    to one number         of each piece, then of these              norm, dot, sum, max, all
    random, in place      drawn whole on the host, as unsplit       normal_, uniform_
    a copy                piece by piece, or cut                    copy_

Writes are counted on the tensor and on its pieces, so that a backward that needs older values raises.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from baechi.torchlib.private.autograd import NO_GRAPH_TASK, current_graph_task_id
from baechi.torchlib.private.operators import schema_of
from baechi.torchlib.split_tensors.lists import made_like, run_fused, run_lists, unscale_lists
from baechi.torchlib.split_tensors.streams import in_backward_on, streams_among
from baechi.torchlib.split_tensors.tensor import SplitTensor, refuse
from baechi.torchlib.tensors.pytree import tensors_in

aten: Any = torch.ops.aten

_NO_PLACE = ("device", "layout", "pin_memory")

_EACH = frozenset(
    ["detach", "alias", "clone", "zeros_like", "ones_like", "empty_like", "full_like", "_to_copy"]
)
"""These give pieces like those of their only tensor."""

_UNTAGGED = frozenset(["lerp", "lerp_", "zero_", "fill_", "nan_to_num_", "masked_fill", "masked_fill_"])
"""Element by element, though torch does not tag all of their overloads so."""


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator that was given a tensor in pieces.

    Args:
        func: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Raises:
        SplitTensorError: it would need the whole on one device.
    """
    if current_graph_task_id() == NO_GRAPH_TASK:
        result = _runner(func)(func, args, kwargs)
    else:
        with in_backward_on(streams_among(tensors_in((args, kwargs)))):
            result = _runner(func)(func, args, kwargs)
    if args and isinstance(args[0], SplitTensor) and schema_of(func).is_mutable:
        torch.autograd.graph.increment_version(args[0].pieces)  # what happens below autograd is not counted
    return result


@cache
def _runner(func: Any) -> Callable[[Any, Any, dict[str, Any]], Any]:
    name = func.overloadpacket.__name__
    known = _RUNNERS.get(name)
    if known is not None:
        return known
    if name in _EACH:
        return _each
    if name.startswith("_foreach_"):
        return run_lists
    if name.startswith("_fused_"):
        return run_fused
    if torch.Tag.nondeterministic_seeded in func.tags and schema_of(func).is_mutable:
        return _drawn
    if torch.Tag.pointwise in func.tags or name in _UNTAGGED:
        return _pointwise
    return _refused


def _refused(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensor = next(t for t in tensors_in((args, kwargs)) if isinstance(t, SplitTensor))
    refuse(f"aten.{func.overloadpacket.__name__} on", tensor)


def _each(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensor, kept = args[0], {name: value for name, value in kwargs.items() if name not in _NO_PLACE}
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != tensor.pieces[0].device.type:
        refuse(f"moving to {device}", tensor)
    return tensor.like([func(piece, *args[1:], **kept) for piece in tensor.pieces])


def _pointwise(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    like = next(value for value in itertools.chain(args, kwargs.values()) if isinstance(value, SplitTensor))
    writes = schema_of(func).is_mutable
    if writes and not isinstance(args[0], SplitTensor):
        refuse(f"writing a whole tensor with aten.{func.overloadpacket.__name__} from", like)
    columns = zip(*[_column(like, value) for value in args], strict=True)
    if kwargs:
        named = {name: _column(like, value) for name, value in kwargs.items()}
        rows = [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]
        made = [func(*column, **row) for column, row in zip(columns, rows, strict=True)]
    else:
        made = [func(*column) for column in columns]
    if writes:
        return args[0]
    return made_like(like, made, func)


def _column(like: SplitTensor, value: Any) -> list[Any]:
    """What of an argument belongs to each piece."""
    if isinstance(value, SplitTensor):
        if like.lies != value.lies:
            refuse(f"an operation with one that is cut elsewhere ({value!r}) on", like)
        return value.pieces
    if isinstance(value, torch.Tensor):
        if value.dim() > like.dim():
            refuse(f"an operation with a tensor of shape {tuple(value.shape)} on", like)
        return like.beside(value)
    return [value] * len(like.pieces)


def _drawn(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Random numbers are those of the whole tensor on the host."""
    tensor = args[0]
    whole = torch.empty(tensor.shape, dtype=tensor.dtype)
    func(whole, *args[1:], **kwargs)
    for piece, drawn in zip(tensor.pieces, tensor.beside(whole), strict=True):
        piece.copy_(drawn)
    return tensor


def _copied(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    if not isinstance(target, SplitTensor):
        target.copy_(source.on_host())
        return target
    if isinstance(source, SplitTensor) and target.lies != source.lies:
        source = source.on_host()
    if not isinstance(source, SplitTensor):
        source = source.expand(target.shape)
        cut = source.split(list(target.sizes), target.axis)
    else:
        cut = source.pieces
    for piece, one in zip(target.pieces, cut, strict=True):
        piece.copy_(one)
    return target


def _new(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensor, shape = args[0], list(args[1])
    kept = {name: value for name, value in kwargs.items() if name not in _NO_PLACE}
    if shape == list(tensor.shape):
        if func.overloadpacket is aten.new_empty_strided:
            return tensor.like([piece.new_empty(piece.shape, **kept) for piece in tensor.pieces])
        return tensor.like([func(piece, list(piece.shape), *args[2:], **kept) for piece in tensor.pieces])
    return func(tensor.pieces[0], *args[1:], **kept)


def _viewed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensor, shape = args[0], list(args[1])
    if shape != list(tensor.shape):
        refuse(f"a view of shape {shape} of", tensor)
    return tensor.like([piece.view(piece.shape) for piece in tensor.pieces])


def _norm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensor, order = args[0], args[1] if len(args) > 1 and args[1] is not None else 2
    axes = args[2] if len(args) > 2 else kwargs.get("dim")
    if axes and len(axes) != tensor.dim():
        refuse("a norm along an axis of", tensor)
    return together([torch.linalg.vector_norm(piece, order) for piece in tensor.pieces], order)


def together(norms: Sequence[torch.Tensor], order: Any) -> torch.Tensor:
    """The norm of a whole from those of its pieces, on the device of the first.

    Args:
        norms: of the pieces.
        order: which norm.
    """
    home = norms[0].device
    stacked = torch.stack([one.to(home) for one in norms])
    found: torch.Tensor = torch.linalg.vector_norm(stacked, order)
    return found


def _dot(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if not all(isinstance(value, SplitTensor) for value in args) or args[0].lies != args[1].lies:
        _refused(func, args, kwargs)
    home = args[0].pieces[0].device
    products = [func(a, b).to(home) for a, b in zip(args[0].pieces, args[1].pieces, strict=True)]
    return torch.stack(products).sum()


def _reduced(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if len(args) > 1 and args[1] not in (None, []):
        refuse(f"aten.{func.overloadpacket.__name__} along an axis of", args[0])
    home = args[0].pieces[0].device
    return func(torch.stack([func(piece, **kwargs).to(home) for piece in args[0].pieces]))


def _equal(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    one, other = args
    if isinstance(one, SplitTensor) and isinstance(other, SplitTensor) and one.lies == other.lies:
        return all(torch.equal(a, b) for a, b in zip(one.pieces, other.pieces, strict=True))
    wholes = [value.on_host() if isinstance(value, SplitTensor) else value.cpu() for value in args]
    return torch.equal(wholes[0], wholes[1])


_RUNNERS: dict[str, Callable[[Any, Any, dict[str, Any]], Any]] = {
    "copy_": _copied,
    "view": _viewed,
    "new_empty": _new,
    "new_empty_strided": _new,
    "new_zeros": _new,
    "new_ones": _new,
    "new_full": _new,
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "dot": _dot,
    "vdot": _dot,
    **dict.fromkeys(["sum", "amax", "max", "min", "amin", "all", "any"], _reduced),
    **dict.fromkeys(["_is_any_true", "_is_all_true"], _reduced),
    "equal": _equal,
    "is_same_size": lambda func, args, kwargs: args[0].shape == args[1].shape,
    "is_pinned": lambda func, args, kwargs: False,
    "_amp_foreach_non_finite_check_and_unscale_": lambda func, args, kwargs: unscale_lists(func, args),
}
"""By operator, what runs it."""
