"""Records of random operations, from which they can be repeated."""

from dataclasses import dataclass
from typing import Any

import torch

from baechi.run.state.meta import Meta
from baechi.torchlib.operators.facts import draws_by_value


@dataclass(frozen=True, slots=True)
class Draw:
    """A random operation with the arguments to repeat it on a device's generator."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device


class ByValue(Exception):
    """A call's random draws or results depend on tensor values."""


def draw_of(func: Any, args: Any, kwargs: Any, device: torch.device) -> Draw:
    """Record a random operation.

    Args:
        func: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.
        device: where its result lies.

    Raises:
        ByValue: its draws depend on values, or on a generator that the model made.
    """
    if draws_by_value(func, args, kwargs):
        raise ByValue

    def meta(value: Any) -> Any:
        return Meta.of(value) if isinstance(value, torch.Tensor) else value

    values = tuple([meta(value) for value in args]), {key: meta(value) for key, value in kwargs.items()}
    return Draw(func, *values, device)
