"""Random operations: which they are, and what it takes to draw as much again."""

from dataclasses import dataclass
from typing import Any

import torch

from baechi.run.state.meta import Meta


@dataclass(frozen=True, slots=True)
class Draw:
    """A random operation, and all that it needs to draw again, from the generator of a device."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device


class ByValue(Exception):
    """What a call draws, or returns, depends on values."""


def draws(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operator takes random numbers from the default generator.

    Args:
        func: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    name = func.overloadpacket.__name__
    if "scaled_dot_product" in name or "flash_attention" in name:  # tagged so even where nothing drops
        position = next(i for i, a in enumerate(func._schema.arguments) if a.name == "dropout_p")
        dropout = args[position] if position < len(args) else kwargs.get("dropout_p", 0.0)
        return bool(dropout)
    return name not in ("rrelu_with_noise_backward",)


_DRAWN_BY_VALUE = (
    "multinomial", "poisson", "binomial", "rrelu_with_noise", "_standard_gamma", "_sample_dirichlet",
)  # fmt: skip
"""How many random numbers these take depends on values."""


def draw_of(func: Any, args: Any, kwargs: Any, device: torch.device) -> Draw:
    """A random operation as it must be repeated.

    Args:
        func: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.
        device: where its result lies.

    Raises:
        ByValue: how much it draws depends on values.
    """
    name = func.overloadpacket.__name__
    if kwargs.get("generator") is not None or any(isinstance(a, torch.Generator) for a in args):
        raise ByValue  # whose state is the model's own
    if name.startswith(_DRAWN_BY_VALUE) or (name == "bernoulli" and len(args) == 1):
        raise ByValue

    def meta(value: Any) -> Any:
        return Meta.of(value) if isinstance(value, torch.Tensor) else value

    values = tuple([meta(value) for value in args]), {key: meta(value) for key, value in kwargs.items()}
    return Draw(func, *values, device)
