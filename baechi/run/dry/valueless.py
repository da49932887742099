"""The model and its inputs without values, for as long as a dry run takes.

The modules stay the same objects, since hooks and closures refer to them. Only their tables of weights are
filled anew, and put back after. Small tensors of whole numbers become copies: models decide by them.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from baechi.errors import DryRunError
from baechi.torchlib.fakes.kernels import is_decided_by, valueless_like
from baechi.torchlib.private.modules import buffer_table, parameter_table
from baechi.torchlib.tensors.pytree import map_tensors


@contextmanager
def valueless_weights(model: nn.Module) -> Iterator[Mapping[int, torch.Tensor]]:
    """Give a model weights without values.

    Args:
        model: the model. Its weights may be on any device, `meta` included.

    Yields:
        By id of each parameter, what stands in for it.

    Raises:
        DryRunError: a weight is no dense tensor.
    """
    tables = [table for m in model.modules() for table in (parameter_table(m), buffer_table(m))]
    before = [dict(table) for table in tables]
    weights = {id(weight): weight for table in before for weight in table.values() if weight is not None}
    try:
        yield _exchange(tables, _stand_ins(list(weights.values())))
    finally:
        for table, found in zip(tables, before, strict=True):
            table.clear()
            table.update(found)


def valueless_inputs(inputs: Any) -> Any:
    """Inputs without values, but for small tensors of whole numbers.

    Args:
        inputs: tensors, nested in lists, tuples and dicts.
    """

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        if is_decided_by(tensor):
            return tensor.detach().cpu().clone()
        (made,) = valueless_like([tensor])
        return made.requires_grad_(tensor.requires_grad)

    return map_tensors(stand_in, inputs)


def _exchange(tables: Iterable[Any], stand_ins: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Fill tables of weights anew; returns the parameters. (Code may let go of a buffer.)"""
    for table in tables:
        table.update({name: stand_ins[id(weight)] for name, weight in table.items() if weight is not None})
    return {key: weight for key, weight in stand_ins.items() if isinstance(weight, nn.Parameter)}


def _stand_ins(weights: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    odd = next((weight for weight in weights if weight.layout != torch.strided or weight.is_nested), None)
    if odd is not None:
        raise DryRunError(f"a weight of shape {tuple(odd.shape)} is no dense tensor ({odd.layout})")
    known = {id(weight): weight.detach().cpu().clone() for weight in weights if is_decided_by(weight)}
    others = [weight for weight in weights if id(weight) not in known]
    made = zip(others, valueless_like(others), strict=True)
    return known | {id(weight): _as_weight(weight, blank) for weight, blank in made}


def _as_weight(weight: torch.Tensor, blank: torch.Tensor) -> torch.Tensor:
    """A parameter if the weight is one, with the attributes that code put on it."""
    made = nn.Parameter(blank, weight.requires_grad) if isinstance(weight, nn.Parameter) else blank
    vars(made).update({name: value for name, value in vars(weight).items() if name not in vars(made)})
    return made
