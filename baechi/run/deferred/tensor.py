"""Deferred values: the outputs of layers and functional ops (glue) that have not launched yet.

A deferred value is a tensor subclass. Its shape, dtype and device are known at once. An operation on it
is deferred too, or forces the launch. On launch the object itself *becomes* the real tensor: every
reference to it (a local variable, a cache, an output class) is a plain tensor from then on.
"""

import sys
from typing import Any

import torch

from baechi.run.deferred.task import Task
from baechi.run.state.meta import Meta
from baechi.torchlib.operators.functions import is_question
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.private.tensors import make_wrapper, swap_implementation
from baechi.torchlib.tensors.storage import Mark, set_mark

_HELD_BY_US = 3
"""References to a result inside `become`: the caller's, the parameter, and `getrefcount`'s argument."""


class Deferred(torch.Tensor):
    """A tensor that is still to be computed. Made by `defer` only."""

    task: Task
    meta: Meta
    use: Any
    """A `StorageUse`; that of a real tensor is at its storage."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Reached only while glue mode is off: in a layer that holds the value, or after the step.
        if is_question(func):
            with without_subclass_function():
                return func(*args, **(kwargs or {}))
        force_all((args, kwargs), getattr(func, "__name__", "a function"))
        return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(
            f"{func} was called on the output of a layer that has not launched yet, in a way that torch "
            "function modes do not see. Run this model with reorder=False, or keep the module around it "
            "whole (no_split_module_classes)"
        )


def defer(meta: Meta, task: Task, use: Any, place: str | None, turn: int) -> Deferred:
    """Make a deferred value.

    Args:
        meta: its shape, strides, dtype and device.
        task: the task that will compute it.
        use: the tasks that will read or write its memory (`StorageUse`).
        place: the device where it will lie.
        turn: its place in the code's order.
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
    value.task, value.meta, value.use = task, meta, use
    return value


def is_deferred(value: object) -> bool:
    """Whether a value is still deferred."""
    return type(value) is Deferred


def become(value: Deferred, real: torch.Tensor) -> None:
    """Turn a deferred value into the real tensor.

    Args:
        value: the deferred value; a plain tensor afterwards.
        real: the result. If other references to it exist, the value becomes an alias of it.
    """
    # Swapping would empty an object that a layer still holds (a cached output, say): take a view of it.
    if sys.getrefcount(real) > _HELD_BY_US or type(real) is not torch.Tensor:
        real = real.view_as(real)
    del value.task, value.meta, value.use
    value.__class__ = torch.Tensor  # type: ignore[assignment]
    swap_implementation(value, real)


def force_all(values: Any, reason: str) -> None:
    """Launch the deferred tensors among some values.

    Args:
        values: tensors, nested in lists, tuples and dicts.
        reason: why the values are needed.
    """
    for value in all_tensors(values):
        if is_deferred(value):
            value.task.force(reason)  # type: ignore[attr-defined]


def all_tensors(values: Any) -> list[torch.Tensor]:
    """All tensors in some values, including deferred ones."""
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
