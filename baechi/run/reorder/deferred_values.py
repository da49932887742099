"""Deferred values: the outputs of layers and functional ops that wait, and the tasks that will compute them.

A deferred value is a tensor subclass. Its shape, dtype and device are known at once. An operation on it
is deferred too, or launches what waits. On launch the object itself *becomes* the real tensor: every
reference to it (a local variable, a cache, an output class) is a plain tensor from then on.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from baechi.errors import BaechiError
from baechi.run.reorder.template import NotPlain, slotted
from baechi.torchlib.placeholder import AbstractPlaceholder
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.private.tensors import make_wrapper, swap_implementation
from baechi.torchlib.tensors.layout import real_device
from baechi.torchlib.tensors.pytree import tensors_in
from baechi.torchlib.tensors.references import references_of_a_call
from baechi.torchlib.tensors.storage import Mark, set_mark


class Meta(NamedTuple):
    """A tensor's metadata, without its values.

    Args:
        size, stride, dtype, device, requires_grad: as of the tensor.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor, device: torch.device | None = None) -> "Meta":
        """Read a tensor's metadata; `device` says where it will lie, if not where it lies now."""
        there = real_device(tensor) if device is None else device
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, there, tensor.requires_grad)


class Owner(Protocol):
    """What launches tasks: a schedule, or what is left of one that failed."""

    def force(self, tasks: "Iterable[Task]", reason: str) -> None:
        """Launch tasks now, and before them the tasks that they need, in the code's order."""


@dataclass(eq=False, slots=True)
class Task:
    """A call that waits to be launched.

    Args:
        owner: the schedule; None after the launch.
        name: the layer's name with the number of its call, or the function's name.
        number: its place in the code's order.
        is_layer: whether it is a layer, which has a turn in its device's order.
        run: launches it, and returns the result; None after the launch.
        template: its result, with slots in place of tensors.
        values: by slot, what stands for the tensor; or the argument that is returned itself.
        missing: how many launches, its turn included, it still waits for.
        needs: tasks that must launch before it.
        followers: tasks that wait for it.
        waits: whether it was neither launched nor dropped.
    """

    owner: Owner | None
    name: str
    number: int
    is_layer: bool
    run: Callable[[], Any] | None
    template: Any = None
    values: list[torch.Tensor] = field(default_factory=list)
    missing: int = 0
    needs: "list[Task]" = field(default_factory=list)
    followers: "list[Task]" = field(default_factory=list)
    waits: bool = True


class Deferred(AbstractPlaceholder):
    """A tensor that is still to be computed. Made by `defer` only."""

    unseen = (
        "the output of a layer that has not launched yet",
        "Run this model with reorder=False, or keep the module around it whole (no_split_module_classes)",
    )
    _baechi_task: Task
    _baechi_meta: Meta

    @classmethod
    def resolved(cls, values: Any, reason: str) -> Any:
        """The values themselves: what was deferred among them becomes real."""
        force(values, reason)
        return values


def defer(meta: Meta, task: Task, place: str | None) -> Deferred:
    """Make a deferred value."""
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
        set_mark(value, Mark(place, task.number))
    value._baechi_task, value._baechi_meta = task, meta
    return value


def tasks_of(tensors: Iterable[torch.Tensor]) -> dict[Task, None]:
    """The tasks that compute those of some tensors that are deferred."""
    return {tensor._baechi_task: None for tensor in tensors if type(tensor) is Deferred}


def force(values: Any, reason: str) -> None:
    """Launch what computes the deferred tensors among some values, nested as they are."""
    for value in tensors_in(values):
        if type(value) is Deferred and value._baechi_task.owner is not None:
            value._baechi_task.owner.force([value._baechi_task], reason)


def hand_over(
    task: Task,
    values: list[torch.Tensor],
    becomes: Callable[[torch.Tensor, torch.Tensor], None],
    box: list[Any],
) -> list[torch.Tensor]:
    """Turn deferred values into the computed results."""
    real: list[torch.Tensor] = []
    try:
        fits = slotted(box.pop(), real) == task.template
    except NotPlain:
        fits = False
    for tensor, value in zip(real, values, strict=False):
        if type(value) is Deferred:
            fits = (
                fits and tensor.shape == value._baechi_meta.size and tensor.dtype == value._baechi_meta.dtype
            )
        else:
            fits = fits and tensor is value
    if not fits:
        raise BaechiError(
            f"{task.name} returned something else than was inferred from its arguments (which tensors, their "
            "shapes or dtypes): its result depends on state that baechi does not see. Run this model with "
            "reorder=False"
        )
    became: list[torch.Tensor] = []
    while real:  # pop, not iterate: `_become` counts references to a result to see if others hold it
        tensor, value = real.pop(), values.pop()
        became.append(value)
        if type(value) is Deferred:
            becomes(tensor, value)
            _become(value, tensor)
    return became[::-1]


def _become(value: Deferred, real: torch.Tensor) -> None:
    """Turn a deferred value into the real tensor; where others refer to that, into an alias of it."""
    # Swapping would empty an object that a layer still holds (a cached output, say): take a view of it.
    if sys.getrefcount(real) > references_of_a_call() or type(real) is not torch.Tensor:
        # as where it was made: the code that needs it now may be under `no_grad`
        with torch.inference_mode(real.is_inference()), torch.set_grad_enabled(real.requires_grad):
            real = real.view_as(real)
    del value._baechi_task, value._baechi_meta
    value.__class__ = torch.Tensor  # type: ignore[assignment]
    swap_implementation(value, real)
