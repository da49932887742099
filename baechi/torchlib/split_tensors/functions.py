"""Functions and attributes of tensors in pieces that never reach the dispatcher, or must not reach it."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from baechi.torchlib.split_tensors.gradients import pieces_of
from baechi.torchlib.split_tensors.moving import set_data
from baechi.torchlib.split_tensors.tensor import FUNCTIONS, SplitTensor, refuse

_Tensor: Any = torch.Tensor


def _sum(tensor: SplitTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if args or kwargs or not isinstance(tensor, SplitTensor):
        refuse("a sum along an axis of", tensor)
    return _added([piece.sum() for piece in pieces_of(tensor)])


def _mean(tensor: SplitTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return _sum(tensor, *args, **kwargs) / tensor.numel()


def _added(numbers: list[torch.Tensor]) -> torch.Tensor:
    total = numbers[0]
    for number in numbers[1:]:
        total = total + number.to(numbers[0].device)
    return total


def _without_storage(tensor: SplitTensor, *_: Any, **__: Any) -> NoReturn:
    refuse("asking for the storage of", tensor)


def _shared(tensor: SplitTensor) -> NoReturn:
    refuse("sharing with other processes", tensor)


_OWN: dict[Any, Callable[..., Any]] = {
    torch.sum: _sum,
    _Tensor.sum: _sum,
    torch.mean: _mean,
    _Tensor.mean: _mean,
    _Tensor.data.__get__: lambda tensor: tensor.detach(),
    _Tensor.data.__set__: set_data,
    _Tensor.untyped_storage: _without_storage,
    _Tensor.storage: _without_storage,
    _Tensor.data_ptr: _without_storage,
    _Tensor.share_memory_: _shared,
    torch.is_complex: lambda tensor: tensor.pieces[0].is_complex(),  # which optimizers ask at each step
}
"""By torch function, what it does on a tensor in pieces."""


def take_functions() -> None:
    """Let tensors in pieces do these."""
    FUNCTIONS.update(_OWN)
