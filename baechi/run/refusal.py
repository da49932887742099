"""A distributed model does not go to one device: `model.to("cuda:1")` is refused, with the reason."""

import functools
from typing import Any

import torch
from torch import nn

from baechi.errors import BaechiError

_MOVERS = ("to", "cuda", "cpu")


def refuse_moves(model: nn.Module) -> None:
    """Refuse moves of the whole model from now on; casts of its dtype still work.

    Args:
        model: the root of a distributed model.
    """
    for name in _MOVERS:
        model.__dict__[name] = functools.partial(_cast_only if name == "to" else _refuse, model)


def allow_moves(model: nn.Module) -> None:
    """Undo `refuse_moves`."""
    for name in _MOVERS:
        model.__dict__.pop(name, None)


def _cast_only(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    device = torch._C._nn._parse_to(*args, **kwargs)[0]
    if device is not None:
        _refuse(model, device)
    moved: nn.Module = type(model).to(model, *args, **kwargs)
    return moved


def _refuse(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    raise BaechiError(
        f"this {type(model).__name__} is distributed over several devices and stays where its plan says: "
        "leave out the move to a device, or call baechi.restore(model, device) first"
    )
