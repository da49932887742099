"""Put pieces behind a tensor, and the whole again: the object stays, with hooks, attributes and gradient."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from baechi.torchlib.split_tensors.files import written_form
from baechi.torchlib.split_tensors.functions import take_functions
from baechi.torchlib.split_tensors.moving import moved
from baechi.torchlib.split_tensors.operators import run
from baechi.torchlib.split_tensors.optimizers import teach_optimizers
from baechi.torchlib.split_tensors.tensor import BEHAVIOUR, SplitTensor
from baechi.torchlib.tensors.swap_memory import exchange_kind

_FORMER = "_former_class"
"""The attribute with the class that a tensor had before it was split."""

_IS_PARAMETER = "_is_param"
"""The attribute by which `isinstance(tensor, nn.Parameter)` knows a parameter of another class."""

take_functions()
BEHAVIOUR.update({"to": moved, "write": written_form, "operator": run})

Piece = Callable[[torch.Tensor, int], torch.Tensor]
"""From a view of the whole and the number of a piece to a tensor of its own, where that piece goes."""


def cut(tensor: torch.Tensor, sizes: Sequence[int], axis: int, place: Piece) -> SplitTensor:
    """A tensor in pieces with the values of a plain one.

    Args:
        tensor: a plain tensor.
        sizes: how long each piece is.
        axis: along which axis.
        place: copies a piece to where it goes.
    """
    views = tensor.detach().split(list(sizes), axis)
    return SplitTensor([place(view, number) for number, view in enumerate(views)], axis)


def split_in_place(tensor: torch.Tensor, pieces: SplitTensor) -> None:
    """Put pieces behind a plain tensor. The gradient of a leaf is gone afterwards.

    Args:
        tensor: a weight, a gradient or part of an optimizer's state.
        pieces: with the same values.
    """
    teach_optimizers()
    former = type(tensor)
    attributes = {"pieces": pieces.pieces, "axis": pieces.axis, "lies": pieces.lies, _FORMER: former}
    if issubclass(former, nn.Parameter):
        attributes[_IS_PARAMETER] = True
    exchange_kind(tensor, pieces, SplitTensor, attributes)


def refill(tensor: SplitTensor, pieces: Sequence[torch.Tensor]) -> None:
    """Put other pieces behind a tensor, on any type of device.

    Args:
        tensor: a tensor in pieces.
        pieces: one for each of its pieces, of the same sizes.
    """
    made = tensor.like(pieces)
    exchange_kind(tensor, made, SplitTensor, {"pieces": made.pieces, "axis": made.axis, "lies": made.lies})


def join_in_place(tensor: SplitTensor, whole: torch.Tensor) -> None:
    """Put a plain tensor behind one in pieces. The gradient of a leaf is gone afterwards.

    Args:
        tensor: a tensor in pieces.
        whole: a plain tensor with the same values.
    """
    parameter = isinstance(tensor, nn.Parameter)
    former = vars(tensor).get(_FORMER, nn.Parameter if parameter else torch.Tensor)
    gone = dict.fromkeys(["pieces", "axis", "lies", "streams", _FORMER, _IS_PARAMETER])
    exchange_kind(tensor, whole, former, gone)
