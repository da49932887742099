"""`DistributedDataParallel` and emulated devices do not go together, and it says so.

It gathers gradients below Python in buckets, one for each device that memory really lies on. Emulated
devices are one such device, so a bucket would take gradients of several.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from baechi.errors import BaechiError
from baechi.torchlib.private.patches import PARALLEL_CALL, PARALLEL_MAKE


@contextmanager
def data_parallel_refused(lies_on_a_device: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """While this is open, no module whose weights lie on emulated devices is wrapped, or called wrapped."""
    make, call = PARALLEL_MAKE.now(), PARALLEL_CALL.now()

    def refuse(module: nn.Module) -> None:
        if any(map(lies_on_a_device, module.parameters())):
            raise BaechiError(
                "DistributedDataParallel cannot tell emulated devices apart: make it and call it outside of "
                "`with cluster:`, where the model computes the same numbers"
            )

    @functools.wraps(make)
    def checked_make(wrapper: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        refuse(module)
        make(wrapper, module, *args, **kwargs)

    @functools.wraps(call)
    def checked_call(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        refuse(wrapper.module)
        return call(wrapper, *args, **kwargs)

    with PARALLEL_MAKE.replaced(checked_make), PARALLEL_CALL.replaced(checked_call):
        yield
