"""The model and its inputs without values, for as long as a dry run takes.

Modules and parameters stay the same objects, since hooks, lists and closures refer to them: only the memory
behind parameters is another one, and is put back after. Small tensors of whole numbers become copies: models
decide by them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from baechi.errors import DryRunError
from baechi.run.weights.match import weights_of
from baechi.torchlib.fakes.kernels import is_decided_by, valueless_like
from baechi.torchlib.private.modules import buffer_table
from baechi.torchlib.tensors.pytree import map_tensors
from baechi.torchlib.tensors.swap_memory import exchange


@contextmanager
def valueless_weights(model: nn.Module) -> Iterator[None]:
    """Let a model's weights have no values, and no gradients.

    Args:
        model: the model. Its weights may be on any device, `meta` included.

    Raises:
        DryRunError: a weight is no dense tensor.
    """
    _refuse_odd(weights_of(model).values())
    tables = [buffer_table(module) for module in model.modules()]
    buffers = [dict(table) for table in tables]
    parameters = list(model.parameters())
    grads = [parameter.grad for parameter in parameters]
    exchanged: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        _replace(tables)
        for weight, blank in zip(parameters, valueless_like(parameters), strict=True):
            weight.grad = None
            exchanged.append((weight, weight.data))
            exchange(weight, blank)
        yield
    finally:
        for tensor, data in exchanged:
            tensor.grad = None
            exchange(tensor, data)
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        for table, found in zip(tables, buffers, strict=True):
            table.clear()
            table.update(found)


def _refuse_odd(weights: Iterable[torch.Tensor]) -> None:
    for weight in weights:
        if weight.layout != torch.strided or weight.is_nested:
            raise DryRunError(f"a weight of shape {tuple(weight.shape)} is no dense tensor ({weight.layout})")


def _replace(tables: Iterable[Any]) -> None:
    """Fill tables with buffers without values. They are new objects: code may let go of a buffer."""
    found = {id(buffer): buffer for table in tables for buffer in table.values() if buffer is not None}
    known = {key: _copied(buffer) for key, buffer in found.items() if is_decided_by(buffer)}
    others = {key: buffer for key, buffer in found.items() if key not in known}
    made = known | dict(zip(others, valueless_like(others.values()), strict=True))
    for table in tables:
        table.update({name: made[id(buffer)] for name, buffer in table.items() if buffer is not None})


def valueless_inputs(inputs: Any) -> Any:
    """Inputs without values, but for small tensors of whole numbers.

    Args:
        inputs: tensors, nested in lists, tuples and dicts.
    """

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        if is_decided_by(tensor):
            return _copied(tensor)
        (made,) = valueless_like([tensor])
        return made.requires_grad_(tensor.requires_grad)

    return map_tensors(stand_in, inputs)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().clone()
