"""What the caller had set when a layer was reached, so that it launches under the same, whenever that is."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

_AUTOCAST_TYPES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class CallerState:
    """Modes of the calling thread.

    Args:
        grad: whether gradients are on.
        inference: whether inference mode is.
        autocast: by type of device, whether it is on, and to which dtype.
        dtype: the default dtype.
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    dtype: torch.dtype

    @classmethod
    def now(cls) -> "CallerState":
        """The state of this thread."""
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple([(torch.is_autocast_enabled(t), torch.get_autocast_dtype(t)) for t in _AUTOCAST_TYPES]),
            torch.get_default_dtype(),
        )

    @property
    def autocasts(self) -> bool:
        """Whether autocast is on for some device."""
        return any(enabled for enabled, _ in self.autocast)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """In this thread everything is set as it was; hooks on saved tensors of others are off."""
        now = CallerState.now()
        hooks = _take_hooks()
        try:
            if now == self and not hooks and not is_transformed():
                yield
                return
            with temporarily_clear_interpreter_stack(), ExitStack() as stack:
                self._enter(stack)
                yield
        finally:
            for pack, unpack in reversed(hooks):
                torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)

    def _enter(self, stack: ExitStack) -> None:
        stack.enter_context(torch.inference_mode(self.inference))
        stack.enter_context(torch.set_grad_enabled(self.grad))
        for device, (enabled, dtype) in zip(_AUTOCAST_TYPES, self.autocast, strict=True):
            if enabled or torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
        before = torch.get_default_dtype()
        if before != self.dtype:
            torch.set_default_dtype(self.dtype)
            stack.callback(torch.set_default_dtype, before)


def is_transformed() -> bool:
    """Whether this thread is inside `torch.vmap`, `torch.func.grad` or the like."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def saves_through_hooks() -> bool:
    """Whether somebody's hooks see every tensor that autograd saves, in order (checkpointing)."""
    top: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return top is not None


def _take_hooks() -> list[tuple[Any, Any]]:
    hooks = []
    while saves_through_hooks():
        hooks.append(torch._C._autograd._top_saved_tensors_default_hooks(True))
        torch._C._autograd._pop_saved_tensors_default_hooks()
    return hooks
