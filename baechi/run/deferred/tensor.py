"""Deferred values: the outputs of layers and glue that were reached and have not launched.

A deferred value is a tensor. It knows its shape, dtype and device at once; what is done with it is
deferred as well, or makes it launch. When it is launched the object *becomes* the real tensor: whoever
holds it (a local variable, a cache, an output class) holds a plain tensor from then on.
"""

import sys
from typing import Any

import torch

from baechi.run.deferred.storage_use import needs_to_read
from baechi.run.deferred.task import Task
from baechi.run.state.meta import Meta
from baechi.torchlib.operators.functions import QUESTIONS
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.private.tensors import make_wrapper, swap_implementation
from baechi.torchlib.tensors.storage import Mark, set_mark

_HELD_BY_US = 3
"""References to a result while it is handed over: the caller's, ours, and that of `getrefcount`."""


class Deferred(torch.Tensor):
    """A tensor that is still to be computed. Made by `defer` only."""

    task: Task

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # glue mode is off: inside a layer that found it somewhere, or after the step
        if func in QUESTIONS:
            with without_subclass_function():
                return func(*args, **(kwargs or {}))
        force_all((args, kwargs), getattr(func, "__name__", "a function"))
        return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(
            f"{func} was called on the output of a layer that has not launched yet, below everything that "
            "baechi sees. Run this model with reorder=False, or keep the module around it whole "
            "(no_split_module_classes)"
        )


def defer(meta: Meta, task: Task, place: str | None, turn: int) -> Deferred:
    """Make a deferred value.

    Args:
        meta: what it will look like.
        task: who will make it.
        place: where it will lie.
        turn: when it was made, as the code sees it.
    """
    value: Deferred = make_wrapper(
        Deferred,
        meta.size,
        strides=meta.stride,
        dtype=meta.dtype,
        layout=torch.strided,
        device=meta.device,
        requires_grad=meta.requires_grad,
    )
    with without_subclass_function():
        set_mark(value, Mark(place, turn))
    value.task = task
    return value


def is_deferred(value: object) -> bool:
    """Whether a value is deferred, still."""
    return type(value) is Deferred


def become(value: Deferred, real: torch.Tensor) -> None:
    """A deferred value becomes the real tensor.

    Args:
        value: the deferred value; a plain tensor afterwards.
        real: what was computed. Where others hold it too, the value becomes an alias of it.
    """
    if sys.getrefcount(real) > _HELD_BY_US or type(real) is not torch.Tensor:
        real = real.view_as(real)
    del value.task
    value.__class__ = torch.Tensor  # type: ignore[assignment]
    swap_implementation(value, real)


def force_all(values: Any, reason: str) -> None:
    """Launch whatever is deferred in some values.

    Args:
        values: anything.
        reason: what needs the values.
    """
    for value in all_tensors(values):
        if is_deferred(value):
            value.task.force(reason)  # type: ignore[attr-defined]


def force_writers(values: Any, reason: str) -> None:
    """Launch whoever waits to write some values.

    Args:
        values: anything.
        reason: what needs the values.
    """
    for value in all_tensors(values):
        for task in needs_to_read(value):
            task.force(reason)


def all_tensors(values: Any) -> list[torch.Tensor]:
    """All tensors in some values, deferred ones among them."""
    found: list[torch.Tensor] = []
    _collect(values, found)
    return found


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, found)
