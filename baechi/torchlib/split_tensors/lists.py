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
    groups, likes = _groups(func, args)
    made: dict[Member, Any] = {}
    for device, members in groups.items():
        own = [_entries(value, likes, members, device) for value in args]
        result = func(*own, **kwargs)
        if result is not None:
            made.update(zip(members, result, strict=True))
    _count([tensor for tensor in args[0] if isinstance(tensor, SplitTensor)], func)
    if not made:
        return None
    return [_result(func, args, made, index, likes.get(index)) for index in range(len(args[0]))]


def _groups(func: Any, args: Any) -> tuple[dict[Any, list[Member]], dict[int, SplitTensor]]:
    """By device, what is there; and by place in the lists, a tensor in pieces that stands there."""
    likes: dict[int, SplitTensor] = {}
    for value in args:
        for index, entry in enumerate(value if isinstance(value, (list, tuple)) else ()):
            if isinstance(entry, SplitTensor):
                likes.setdefault(index, entry)
    groups: dict[Any, list[Member]] = {}
    for index, tensor in enumerate(args[0]):
        like = likes.get(index)
        if like is None:
            groups.setdefault(tensor.device, []).append((index, None))
            continue
        if schema_of(func).is_mutable and not isinstance(tensor, SplitTensor):
            refuse(f"writing a whole tensor with {func} from", like)
        for number, piece in enumerate(like.pieces):
            groups.setdefault(piece.device, []).append((index, number))
    return groups, likes


def _entries(value: Any, likes: dict[int, SplitTensor], members: list[Member], device: Any) -> Any:
    """What of an argument goes to one device."""
    if isinstance(value, torch.Tensor):
        return value if value.device.type == "cpu" and value.dim() == 0 else value.to(device)
    if not isinstance(value, (list, tuple)) or not value:
        return value
    return [_entry(value[index], likes.get(index), number) for index, number in members]


def _entry(value: Any, like: SplitTensor | None, number: int | None) -> Any:
    if number is None or like is None or not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    if isinstance(value, SplitTensor):
        if not like.is_alike(value):
            refuse(f"an operation with one that is cut elsewhere ({value!r}) on", like)
        return value.pieces[number]
    return like.beside(value)[number]


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
    return like.like(pieces)


def run_fused(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Run a `_fused` optimizer's operator.

    Args:
        func: the operator.
        args: lists with one entry a tensor; weights first.
        kwargs: its keyword arguments.
    """
    likes = [tensor if isinstance(tensor, SplitTensor) else None for tensor in args[0]]
    members: list[Member] = []
    for index, like in enumerate(likes):
        numbers: Sequence[int | None] = range(len(like.pieces)) if like is not None else [None]
        members += [(index, number) for number in numbers]
    columns = [
        [_entry(value[i], likes[i], number) for i, number in members] if value else value for value in args
    ]
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
        here = found if found.device == device else torch.zeros_like(found, device=device)
        func(pieces, here, inverse.to(device))
        if here is not found:
            found.copy_(torch.maximum(found, here.to(found.device)))
    _count([grad for grad in grads if isinstance(grad, SplitTensor)], func)


def _count(written: list[SplitTensor], func: Any) -> None:
    """No operator of lists is counted by torch on a tensor of ours, nor on its pieces."""
    if schema_of(func).is_mutable and written:
        pieces: list[torch.Tensor] = [piece for tensor in written for piece in tensor.pieces]
        torch.autograd.graph.increment_version([*written, *pieces])
