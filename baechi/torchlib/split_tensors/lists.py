"""Operators of lists (`torch.optim` with `foreach` or `fused`, clipping): one call for each device.

given    [weight a, weight b in pieces on 0 and 1]
runs     device 0: [a, b's first piece]     device 1: [b's second piece]
"""

from collections.abc import Sequence
from typing import Any

import torch

from baechi.torchlib.private.operators import schema_of
from baechi.torchlib.split_tensors.tensor import SplitTensor, refuse

Member = tuple[int, int | None]
"""The place in a list, and the number of the piece; None for a plain tensor."""


def run_lists(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a `_foreach` operator.

    Args:
        func: the operator.
        args: its positional arguments: lists with one entry a tensor, and values that all share.
        kwargs: its keyword arguments.

    Raises:
        SplitTensorError: a plain tensor would be written from one in pieces.
    """
    likes = _likes(func, args)
    groups: dict[Any, list[int]] = {}
    flat = [_flat(value, likes) for value in args]
    members = _members(args[0], likes)
    for place, tensor in enumerate(flat[0]):
        groups.setdefault(tensor.device, []).append(place)
    made: dict[Member, Any] = {}
    for device, places in groups.items():
        own = [_there(value, places, device) for value in flat]
        result = func(*own, **kwargs)
        if result is not None:
            made.update(zip([members[place] for place in places], result, strict=True))
    _count([tensor for tensor in args[0] if isinstance(tensor, SplitTensor)], func)
    if not made:
        return None
    return [_result(func, args, made, index, like) for index, like in enumerate(likes)]


def _likes(func: Any, args: Any) -> list[SplitTensor | None]:
    """By place in the lists, a tensor in pieces that stands there, if there is one."""
    lists = [value for value in args if isinstance(value, (list, tuple)) and value]
    likes = [
        next((one for one in row if isinstance(one, SplitTensor)), None) for row in zip(*lists, strict=True)
    ]
    if schema_of(func).is_mutable:
        for tensor, like in zip(args[0], likes, strict=True):
            if like is not None and not isinstance(tensor, SplitTensor):
                refuse(f"writing a whole tensor with {func} from", like)
    return likes


def _members(first: Sequence[Any], likes: list[SplitTensor | None]) -> list[Member]:
    """The place in the list, and the piece, of each entry when pieces stand in place of what they make up."""
    members: list[Member] = []
    for index, like in zip(range(len(first)), likes, strict=True):
        members += [(index, None)] if like is None else [(index, n) for n in range(len(like.pieces))]
    return members


def _flat(value: Any, likes: list[SplitTensor | None]) -> Any:
    """A list with pieces in place of what they make up; other values as they are."""
    if not isinstance(value, (list, tuple)) or not value:
        return value
    entries: list[Any] = []
    for one, like in zip(value, likes, strict=True):
        if like is None:
            entries.append(one)
        elif isinstance(one, SplitTensor):
            if like.lies != one.lies:
                refuse(f"an operation with one that is cut elsewhere ({one!r}) on", like)
            entries += one.pieces
        elif isinstance(one, torch.Tensor) and one.dim():
            entries += like.beside(one)
        else:
            entries += [one] * len(like.pieces)
    return entries


def _there(value: Any, places: list[int], device: Any) -> Any:
    """What of an argument goes to one device."""
    if isinstance(value, list) and value:
        return [value[place] for place in places]
    if isinstance(value, torch.Tensor) and (value.dim() or value.device.type != "cpu"):
        return value.to(device)
    return value


def _result(func: Any, args: Any, made: dict[Member, Any], index: int, like: SplitTensor | None) -> Any:
    if like is None:
        return made[index, None]
    pieces = [made[index, number] for number in range(len(like.pieces))]
    name, home = func.overloadpacket.__name__, pieces[0].device
    if "norm" in name:
        order = args[1] if len(args) > 1 else 2
        return torch.linalg.vector_norm(torch.stack([piece.to(home) for piece in pieces]), order)
    if name == "_foreach_max":
        return torch.stack([piece.to(home) for piece in pieces]).amax(0)
    return made_like(like, pieces, func)


def made_like(like: SplitTensor, pieces: Sequence[torch.Tensor], func: Any) -> SplitTensor:
    """What an operator made of each piece, as one tensor in pieces.

    Args:
        like: the tensor in pieces.
        pieces: the results.
        func: the operator.

    Raises:
        SplitTensorError: a result has another shape than its piece, as by an operand that is wider.
    """
    if any([made.shape != piece.shape for made, piece in zip(pieces, like.pieces, strict=True)]):
        refuse(f"aten.{func.overloadpacket.__name__}, whose result has another shape than", like)
    return like.like(pieces)


def run_fused(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Run a `_fused` optimizer's operator.

    Args:
        func: the operator.
        args: lists with one entry a tensor; weights first.
        kwargs: its keyword arguments.
    """
    columns = [_flat(value, _likes(func, args)) for value in args]
    groups: dict[Any, list[int]] = {}
    for place, tensor in enumerate(columns[0]):
        groups.setdefault((tensor.device, tensor.dtype), []).append(place)
    for (device, _), places in groups.items():
        own = [[column[place] for place in places] if column else column for column in columns]
        named = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in kwargs.items()
        }
        func(*own, **named)
    _count([tensor for tensor in args[0] if isinstance(tensor, SplitTensor)], func)


def unscale_lists(func: Any, args: Any) -> None:
    """Run what a `GradScaler` unscales gradients with.

    Args:
        func: the operator.
        args: the gradients, where it notes what is not finite, and the inverse scale.
    """
    grads, found, inverse = args
    flat = [piece for grad in grads for piece in (grad.pieces if isinstance(grad, SplitTensor) else [grad])]
    groups: dict[Any, list[torch.Tensor]] = {}
    for piece in flat:
        groups.setdefault((piece.device, piece.dtype), []).append(piece)
    for (device, _), pieces in groups.items():
        here = found if found.device == device else torch.zeros_like(found.to(device))
        func(pieces, here, inverse.to(device))
        if here is not found:
            found.copy_(torch.maximum(found, here.to(found.device)))
    _count([grad for grad in grads if isinstance(grad, SplitTensor)], func)


def _count(written: list[SplitTensor], func: Any) -> None:
    """No operator of lists is counted by torch on a tensor of ours, nor on its pieces."""
    if schema_of(func).is_mutable and written:
        pieces: list[torch.Tensor] = [piece for tensor in written for piece in tensor.pieces]
        torch.autograd.graph.increment_version([*written, *pieces])
