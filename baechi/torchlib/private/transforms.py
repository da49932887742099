"""`torch.func` and forward-mode differentiation: what they wrap around tensors, and how to be outside."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from baechi.errors import BaechiError
from baechi.torchlib.private.lookup import named

_without_transforms: Callable[[], AbstractContextManager[object]] = named(
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack",
    "do what no transform of torch.func has a rule for",
)
current_transform: Callable[[], Any] = named(
    "torch._C._functorch.peek_interpreter_stack", "keep the code's order inside of torch.func"
)
_NOTHING = nullcontext()


def without_transforms() -> AbstractContextManager[object]:
    """Do what no transform of torch.func has a rule for. (Most often none is there.)"""
    return _NOTHING if current_transform() is None else _without_transforms()


is_wrapped: Callable[[torch.Tensor], bool] = named(
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "tell tensors that torch.func wraps from plain ones",
)
unwrapped_once: Callable[[torch.Tensor], torch.Tensor] = named(
    "torch._C._functorch.get_unwrapped", "find the memory behind a tensor that torch.func wraps"
)

is_batch: Callable[[torch.Tensor], bool] = named(
    "torch._C._functorch.is_legacy_batchedtensor",
    "tell batches of gradients (`is_grads_batched`, `vectorize`) from plain tensors",
    lambda tensor: False,
)
_without_batch: Callable[[torch.Tensor, int, int, int], torch.Tensor] = named(
    "torch._remove_batch_dim", "find the memory behind a batch of gradients"
)
_with_batch: Callable[[torch.Tensor, int, int], torch.Tensor] = named(
    "torch._add_batch_dim", "send a batch of gradients"
)
_MOST_LEVELS = 64
"""So many batches of gradients torch allows inside of each other."""


def as_batch(tensor: torch.Tensor) -> tuple[torch.Tensor, int] | None:
    """What is behind a batch of gradients: a tensor whose first dimension is the batch, and torch's level.

    Torch's older vmap makes such tensors, for `torch.autograd.grad(..., is_grads_batched=True)` and
    `jacobian(..., vectorize=True)`. They have no storage, and few rules for what is done with them.
    """
    if not is_batch(tensor):
        return None
    for level in range(1, _MOST_LEVELS):  # a level that it has not would only expand it
        behind = _without_batch(tensor, level, 1, 0)
        if not is_batch(behind):
            return behind, level
    raise BaechiError(
        "batches of gradients inside of each other do not go over several devices: use torch.func.vmap"
    )


def rebatched(behind: torch.Tensor, level: int) -> torch.Tensor:
    """The batch of gradients of which `as_batch` gave what is behind it, or a copy of that."""
    return _with_batch(behind, 0, level)


named("torch.autograd.forward_ad._current_level", "see at once that no tensor carries a tangent", 0)
forward_ad_level: Callable[[], int] = partial(getattr, forward_ad, "_current_level", 0)
"""Below 0 no tensor carries a tangent. A torch without it is asked tensor by tensor: slower, and right."""
