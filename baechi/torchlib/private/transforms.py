"""`torch.func` and forward-mode differentiation: what they wrap around tensors, and how to be outside."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

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

named("torch.autograd.forward_ad._current_level", "see at once that no tensor carries a tangent", 0)
forward_ad_level: Callable[[], int] = partial(getattr, forward_ad, "_current_level", 0)
"""Below 0 no tensor carries a tangent. A torch without it is asked tensor by tensor: slower, and right."""
