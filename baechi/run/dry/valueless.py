"""Take the values of a model's weights and of its inputs away while a dry run takes place.

Modules and parameters stay the same objects, since hooks, lists and closures refer to them. Only the memory
behind each parameter is exchanged, and put back afterwards. Small inputs and buffers keep their values, as
copies: models branch on them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from baechi.errors import DryRunError
from baechi.run.weights.match import weights_of
from baechi.torchlib.fakes.kernels import keeps_values, valueless_like
from baechi.torchlib.private.modules import buffer_table
from baechi.torchlib.shards.cut import join_in_place
from baechi.torchlib.shards.weight import ShardedWeight
from baechi.torchlib.tensors.layout import copy_with_layout
from baechi.torchlib.tensors.pytree import map_tensors
from baechi.torchlib.tensors.spans import copied_to_host
from baechi.torchlib.tensors.swap_memory import exchange


@contextmanager
def valueless_weights(model: nn.Module) -> Iterator[None]:
    """Within this context, a model's weights have no values and no gradients."""
    _refuse_not_dense(weights_of(model).values())
    tables = [buffer_table(module) for module in model.modules()]
    buffers = [dict(table) for table in tables]
    parameters = list(model.parameters())
    grads = [parameter.grad for parameter in parameters]
    exchanged: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        _replace_buffers(tables)
        for weight, blank in zip(parameters, valueless_like(parameters), strict=True):
            weight.grad = None
            exchanged.append((weight, weight.data))
            exchange(weight, blank)
        yield
    finally:
        for tensor, data in exchanged:
            tensor.grad = None
            if isinstance(tensor, ShardedWeight):
                join_in_place(tensor, data)
            else:
                exchange(tensor, data)
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        for table, found in zip(tables, buffers, strict=True):
            _put_back(table, found)


def _refuse_not_dense(weights: Iterable[torch.Tensor]) -> None:
    for weight in weights:
        if weight.layout != torch.strided or weight.is_nested:
            raise DryRunError(f"a weight of shape {tuple(weight.shape)} is no dense tensor ({weight.layout})")


def _replace_buffers(tables: Iterable[Any]) -> None:
    """Replace the buffers in modules' tables by valueless ones, or by copies where they keep values.

    Unlike parameters these are new objects, which only the model holds. So the memory of a buffer that the
    model's code replaces is released, as in a real run.
    """
    found = {id(buffer): buffer for table in tables for buffer in table.values() if buffer is not None}
    kept = {key: buffer for key, buffer in found.items() if keeps_values(buffer)}
    others = {key: buffer for key, buffer in found.items() if key not in kept}
    made = dict(zip(kept, copied_to_host(kept.values()), strict=True))
    made |= zip(others, valueless_like(others.values()), strict=True)
    for table in tables:
        for name, buffer in list(table.items()):
            if buffer is not None:
                table[name] = made[id(buffer)]


def _put_back(table: Any, found: dict[str, Any]) -> None:
    """Give a module its buffers back, in their order. A script module's table takes new values only."""
    if isinstance(table, dict):
        table.clear()
    for name, buffer in found.items():
        table[name] = buffer


def valueless_inputs(inputs: Any) -> Any:
    """Inputs without values, except small ones, which are copied: what follows from them alone is known."""
    known: dict[int, torch.Tensor] = {}

    def replaced(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:
            if keeps_values(tensor):
                made = copy_with_layout(tensor.detach(), torch.device("cpu"))
            else:
                (made,) = valueless_like([tensor])
            known[id(tensor)] = made.requires_grad_(tensor.requires_grad)
        return known[id(tensor)]

    return map_tensors(replaced, inputs)
