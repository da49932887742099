"""The torch settings of the caller when a layer was reached, restored when the layer launches."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from operator import call
from typing import Any, NamedTuple

import torch

from baechi.torchlib.autocast import autocast_types, casts_anywhere, no_casts
from baechi.torchlib.private.autograd import (
    are_views_replayed,
    pop_saved_hooks,
    push_saved_hooks,
    replay_views,
    top_saved_hooks,
)
from baechi.torchlib.private.kernels import KERNEL_CHOICES
from baechi.torchlib.private.transforms import current_transform, without_transforms

CHOICES = (*KERNEL_CHOICES, (are_views_replayed, replay_views))
"""How to get and set what torch may choose."""

_ASKED = tuple(ask for ask, _ in CHOICES)


class CallerState(NamedTuple):
    """Settings of the calling thread and of the process.

    Args:
        grad: whether gradients are enabled.
        inference: whether inference mode is on.
        autocast: by device type, whether autocast is on.
        cast_to: by device type, the dtype of autocast; None where it is off for all.
        dtype: the default dtype.
        choices: which kernels torch may choose (`sdpa_kernel` and the like), and which autograd nodes.
    """

    grad: bool
    inference: bool
    autocast: tuple[bool, ...]
    cast_to: tuple[torch.dtype | None, ...]
    dtype: torch.dtype
    choices: tuple[Any, ...]

    @classmethod
    def now(cls) -> "CallerState":
        """Read the settings of this thread."""
        casts = _casts() if casts_anywhere() else no_casts()  # to ask type by type takes long
        grads = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        found = (*grads, *casts, torch.get_default_dtype(), (*map(call, _ASKED),))
        return tuple.__new__(cls, found)  # what `cls(*found)` does, without a function in between

    @property
    def autocasts(self) -> bool:
        """Whether autocast is on for some device type."""
        return any(self.autocast)

    def restored(self) -> AbstractContextManager[None]:
        """Within this context, this thread has these settings, and saved-tensor hooks are off."""
        return _Restored(self)

    def enter(self, stack: ExitStack) -> None:
        """Restore what differs now."""
        stack.enter_context(torch.inference_mode(self.inference))
        stack.enter_context(torch.set_grad_enabled(self.grad))
        for device, enabled, dtype in zip(autocast_types(), self.autocast, self.cast_to, strict=True):
            if enabled or torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
        before = torch.get_default_dtype()
        if before != self.dtype:
            torch.set_default_dtype(self.dtype)
            stack.callback(torch.set_default_dtype, before)
        for (ask, choose), chosen in zip(CHOICES, self.choices, strict=True):
            if (now := ask()) != chosen:
                choose(chosen)
                stack.callback(choose, now)


class _Restored:
    """Within this context, this thread has some settings. (Most often it has them already.)"""

    __slots__ = ("_stack", "_state")

    def __init__(self, state: CallerState) -> None:
        self._state = state
        self._stack: ExitStack | None = None

    def __enter__(self) -> None:
        hooks: Any = top_saved_hooks(True)
        if CallerState.now() == self._state and hooks is None and current_transform() is None:
            return
        with ExitStack() as stack:
            stack.enter_context(saved_hooks_aside())
            stack.enter_context(without_transforms())
            self._state.enter(stack)
            self._stack = stack.pop_all()

    def __exit__(self, *raised: Any) -> None:
        if self._stack is not None:
            self._stack.__exit__(*raised)


def _casts() -> tuple[tuple[bool, ...], tuple[torch.dtype | None, ...]]:
    """By device type, whether autocast is on, and its dtype."""
    kinds = autocast_types()
    return (*map(torch.is_autocast_enabled, kinds),), (*map(torch.get_autocast_dtype, kinds),)


def is_transformed() -> bool:
    """Whether this thread is inside `torch.vmap`, `torch.func.grad` or the like."""
    return current_transform() is not None


def saves_through_hooks() -> bool:
    """Whether saved-tensor hooks are on, which expect saves in the code's order (checkpointing)."""
    top: Any = top_saved_hooks(True)
    return top is not None


@contextmanager
def saved_hooks_aside() -> Iterator[bool]:
    """Within this context, saved-tensor hooks are off, since checkpointing counts what is saved."""
    hooks = []
    while saves_through_hooks():
        hooks.append(top_saved_hooks(True))
        pop_saved_hooks()
    try:
        yield bool(hooks)
    finally:
        for pack, unpack in reversed(hooks):
            push_saved_hooks(pack, unpack)
