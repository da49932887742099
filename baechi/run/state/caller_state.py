"""What the caller had set when a layer was reached, so that it launches under the same, whenever that is."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from baechi.torchlib.autocast import autocast_types
from baechi.torchlib.private.autograd import pop_saved_hooks, push_saved_hooks, top_saved_hooks
from baechi.torchlib.private.kernels import KERNEL_CHOICES
from baechi.torchlib.private.transforms import current_transform, without_transforms


@dataclass(frozen=True, slots=True)
class CallerState:
    """Modes of the calling thread, and of the process.

    Args:
        grad: whether gradients are on.
        inference: whether inference mode is.
        autocast: by type of device, whether it is on, and to which dtype.
        dtype: the default dtype.
        kernels: which kernels torch takes (`sdpa_kernel` and the like).
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    dtype: torch.dtype
    kernels: tuple[Any, ...]

    @classmethod
    def now(cls) -> "CallerState":
        """The state of this thread."""
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple([(torch.is_autocast_enabled(t), torch.get_autocast_dtype(t)) for t in autocast_types()]),
            torch.get_default_dtype(),
            tuple([ask() for ask, _ in KERNEL_CHOICES]),
        )

    @property
    def autocasts(self) -> bool:
        """Whether autocast is on for some device."""
        return any(enabled for enabled, _ in self.autocast)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """In this thread everything is set as it was; hooks on saved tensors of others are off."""
        now = CallerState.now()
        with saved_hooks_aside() as hooked:
            if now == self and not hooked and not is_transformed():
                yield
                return
            with without_transforms(), ExitStack() as stack:
                self._enter(stack)
                yield

    def _enter(self, stack: ExitStack) -> None:
        stack.enter_context(torch.inference_mode(self.inference))
        stack.enter_context(torch.set_grad_enabled(self.grad))
        for device, (enabled, dtype) in zip(autocast_types(), self.autocast, strict=True):
            if enabled or torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
        before = torch.get_default_dtype()
        if before != self.dtype:
            torch.set_default_dtype(self.dtype)
            stack.callback(torch.set_default_dtype, before)
        for (ask, choose), kernel in zip(KERNEL_CHOICES, self.kernels, strict=True):
            if (now := ask()) != kernel:
                choose(kernel)
                stack.callback(choose, now)


def is_transformed() -> bool:
    """Whether this thread is inside `torch.vmap`, `torch.func.grad` or the like."""
    return current_transform() is not None


def saves_through_hooks() -> bool:
    """Whether somebody's hooks see every tensor that autograd saves, in order (checkpointing)."""
    top: Any = top_saved_hooks(True)
    return top is not None


@contextmanager
def saved_hooks_aside() -> Iterator[bool]:
    """While this is open, no hooks see what autograd saves: checkpointing counts it.

    Yields:
        Whether there were hooks.
    """
    hooks = []
    while saves_through_hooks():
        hooks.append(top_saved_hooks(True))
        pop_saved_hooks()
    try:
        yield bool(hooks)
    finally:
        for pack, unpack in reversed(hooks):
            push_saved_hooks(pack, unpack)
