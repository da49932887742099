"""Random operations, and what it takes to draw as much again."""

from dataclasses import dataclass
from typing import Any

import torch

from baechi.run.state.meta import Meta
from baechi.torchlib.operators.facts import draws_by_value


@dataclass(frozen=True, slots=True)
class Draw:
    """A random operation, and all that it needs to draw again, from the generator of a device."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device


class ByValue(Exception):
    """What a call draws, or returns, depends on values."""


def draw_of(func: Any, args: Any, kwargs: Any, device: torch.device) -> Draw:
    """A random operation as it must be repeated.

    Args:
        func: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.
        device: where its result lies.

    Raises:
        ByValue: what it draws depends on values, or on a generator of the model's own.
    """
    if draws_by_value(func, args, kwargs):
        raise ByValue

    def meta(value: Any) -> Any:
        return Meta.of(value) if isinstance(value, torch.Tensor) else value

    values = tuple([meta(value) for value in args]), {key: meta(value) for key, value in kwargs.items()}
    return Draw(func, *values, device)
