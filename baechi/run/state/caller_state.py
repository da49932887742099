"""The torch settings of the caller when a layer was reached, restored when the layer launches."""

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
    """Settings of the calling thread and of the process.

    Args:
        grad: whether gradients are enabled.
        inference: whether inference mode is on.
        autocast: by device type, whether autocast is on, and to which dtype.
        dtype: the default dtype.
        kernels: which kernels torch may choose (`sdpa_kernel` and the like).
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    dtype: torch.dtype
    kernels: tuple[Any, ...]

    @classmethod
    def now(cls) -> "CallerState":
        """Read the settings of this thread."""
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple([(torch.is_autocast_enabled(t), torch.get_autocast_dtype(t)) for t in autocast_types()]),
            torch.get_default_dtype(),
            tuple([ask() for ask, _ in KERNEL_CHOICES]),
        )

    @property
    def autocasts(self) -> bool:
        """Whether autocast is on for some device type."""
        return any(enabled for enabled, _ in self.autocast)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Within this context, this thread has these settings, and saved-tensor hooks are off."""
        now = CallerState.now()
        if now == self and not saves_through_hooks() and not is_transformed():
            yield
            return
        with saved_hooks_aside(), without_transforms(), ExitStack() as stack:
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
    """Whether saved-tensor hooks are on, which expect saves in the code's order (checkpointing)."""
    top: Any = top_saved_hooks(True)
    return top is not None


@contextmanager
def saved_hooks_aside() -> Iterator[bool]:
    """Within this context, saved-tensor hooks are off, since checkpointing counts what is saved.

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
