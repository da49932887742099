"""The row of the architecture table, its seeded inputs and the loss its tests differentiate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 99
"""The number of token ids, of which the first three are special."""

_CACHES = frozenset({"past_key_values", "cache_params", "state", "mems"})


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A small model and one batch of keyword arguments for it, both the same on every call."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]


def seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return `build` with its random numbers fixed and the caller's generator left alone."""

    def build_seeded() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build()

    return build_seeded


def token_ids(*shape: int, seed: int = 1) -> Tensor:
    """Return ordinary token ids."""
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def noise(*shape: int, seed: int = 1) -> Tensor:
    """Return normally distributed numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors of nested outputs in a fixed order, leaving out generation caches."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _CACHES:
                yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            if field.name not in _CACHES:
                yield from _tensors(getattr(value, field.name))


def loss_of(outputs: object) -> Tensor:
    """Return a scalar that depends on every differentiable tensor of nested `outputs`."""
    total: Tensor | None = None
    for index, tensor in enumerate(_tensors(outputs)):
        if tensor.is_floating_point() and tensor.requires_grad:
            term = tensor.double().pow(2).mean() * (1 + index / 4)
            total = term if total is None else total + term.to(total.device)
    if total is None:
        raise ValueError("no output requires a gradient")
    return total
