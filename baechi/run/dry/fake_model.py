"""The model and its inputs with fake tensors in place of real ones, for as long as a dry run takes.

The modules stay the same objects, since hooks and closures refer to them. Only their tables of weights are
filled anew, and put back after. Small integer tensors become real copies: models decide by them.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from baechi.errors import DryRunError
from baechi.torchlib.fakes.kernels import ShapeKernels, is_decided_by
from baechi.torchlib.private.modules import buffer_table, parameter_table
from baechi.torchlib.tensors.blank_memory import blank_tensors
from baechi.torchlib.tensors.pytree import map_tensors

_CPU = torch.device("cpu")


@contextmanager
def fake_weights(model: nn.Module, shapes: ShapeKernels) -> Iterator[Mapping[int, torch.Tensor]]:
    """Give a model weights without values.

    Args:
        model: the model. Its weights may be on any device, `meta` included.
        shapes: whose fake tensors they are.

    Yields:
        By id of each weight, what stands in for it.

    Raises:
        DryRunError: a weight is no dense tensor.
    """
    tables = [table for m in model.modules() for table in (parameter_table(m), buffer_table(m))]
    before = [dict(table) for table in tables]
    weights = {id(weight): weight for table in before for weight in table.values() if weight is not None}
    fakes = _fakes_of(weights.values(), shapes)
    try:
        for table, found in zip(tables, before, strict=True):
            table.update({name: fakes[id(weight)] for name, weight in found.items() if weight is not None})
        yield fakes
    finally:
        for table, found in zip(tables, before, strict=True):
            table.clear()
            table.update(found)


def fake_inputs(inputs: Any, shapes: ShapeKernels) -> Any:
    """Inputs without values, but for small integer tensors.

    Args:
        inputs: tensors, nested in lists, tuples and dicts.
        shapes: whose fake tensors they are.
    """

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if is_decided_by(tensor):
            return tensor.detach().cpu().clone()
        (made,) = _blank([tensor], shapes)
        return made.requires_grad_(tensor.requires_grad)

    return map_tensors(fake, inputs)


def _fakes_of(weights: Iterable[torch.Tensor], shapes: ShapeKernels) -> dict[int, torch.Tensor]:
    weights = list(weights)
    odd = next((weight for weight in weights if weight.layout != torch.strided or weight.is_nested), None)
    if odd is not None:
        raise DryRunError(f"a weight of shape {tuple(odd.shape)} is no dense tensor ({odd.layout})")
    known = {id(weight): weight.detach().cpu().clone() for weight in weights if is_decided_by(weight)}
    others = [weight for weight in weights if id(weight) not in known]
    fakes = dict(zip(map(id, others), _blank(others, shapes), strict=True))
    return known | {id(weight): _like(weight, fakes[id(weight)]) for weight in others}


def _like(weight: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    """A fake tensor that is a parameter if the weight is one, with the attributes that code put on it."""
    made = nn.Parameter(fake, weight.requires_grad) if isinstance(weight, nn.Parameter) else fake
    vars(made).update({name: value for name, value in vars(weight).items() if name not in vars(made)})
    return made


def _blank(tensors: list[torch.Tensor], shapes: ShapeKernels) -> list[torch.Tensor]:
    with shapes.mode:
        return blank_tensors(tensors, _CPU)
