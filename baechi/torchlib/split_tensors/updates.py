"""An optimizer's update of lists of weights: pieces stand in the lists in place of what they make up.

given    [weight a, weight b in pieces]     state of each     one step count each
runs     [a, b's first piece, b's second]   their state       the count, and copies of it

So an update costs what it costs for as many plain weights: no operator sees a tensor in pieces.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from baechi.torchlib.dynamo import uncompiled
from baechi.torchlib.private.patches import UPDATES
from baechi.torchlib.split_tensors.tensor import SplitTensor, refuse

Update = Callable[..., None]


def teach_updates() -> None:
    """Let the updates of torch's elementwise optimizers take weights in pieces; done once."""
    for place in UPDATES:
        if place.exists:
            place.put(_by_pieces(place.original))


def _by_pieces(update: Update) -> Update:
    names = tuple(inspect.signature(update).parameters)[1:]

    @functools.wraps(update)
    def updated(params: Sequence[torch.Tensor], *given: Any, **options: Any) -> None:
        if SplitTensor in map(type, params):
            named = {**dict(zip(names, given, strict=False)), **options}
            if not named.get("differentiable"):
                _run(update, params, named, gradients=names[0])
                return
        update(params, *given, **options)

    return updated


@uncompiled
def _run(update: Update, params: Sequence[Any], given: dict[str, Any], gradients: str) -> None:
    columns = dict(given)
    written = [weight for weight in params if type(weight) is SplitTensor]
    for name, value in given.items():  # at each step, so what is no list costs one look
        if type(value) is list and value:
            columns[name] = _flat(value, params, first=name == gradients)
    update([piece for weight in params for piece in _parts(weight)], **columns)
    for name, after in columns.items():
        before = given[name]
        if after is not before:
            if any([one is None for one in before]):
                _put_where_none_was(before, after, params)
            written += [one for one in before if type(one) is SplitTensor]
    torch.autograd.graph.increment_version(written)  # torch has counted the writes of the pieces


def _parts(weight: Any) -> Sequence[Any]:
    return weight.pieces if type(weight) is SplitTensor else (weight,)


def _flat(value: list[Any], params: Sequence[Any], *, first: bool) -> list[Any]:
    """A list with what stands beside pieces in place of what stands beside their weight."""
    flat: list[Any] = []
    for weight, one in zip(params, value, strict=True):
        if type(weight) is not SplitTensor:
            flat.append(one)
        elif type(one) is SplitTensor:
            if one.lies != weight.lies:
                refuse(f"an update by one that is cut elsewhere ({one!r}) of", weight)
            flat += one.pieces
        elif one is None:
            flat += [None] * len(weight.pieces)
        elif not one.dim():  # the same for all pieces; each write counts once
            flat += [one, *[_copied(one, piece) for piece in weight.pieces[1:]]]
        elif first:
            flat += weight.beside(one)
        else:
            refuse("state that is whole beside", weight)
    return flat


def _copied(number: torch.Tensor, piece: torch.Tensor) -> torch.Tensor:
    return number.clone() if number.device.type == "cpu" else number.to(piece.device, copy=True)


def _put_where_none_was(before: list[Any], after: list[Any], params: Sequence[Any]) -> None:
    """Put state that an update has made into a list, in pieces where its weight is."""
    start = 0
    for index, weight in enumerate(params):
        stop = start + len(_parts(weight))
        if before[index] is None and after[start] is not None:
            whole = type(weight) is not SplitTensor
            before[index] = after[start] if whole else weight.like(after[start:stop])
        start = stop
