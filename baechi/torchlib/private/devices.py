"""What torch has for accelerators beside what it promises."""

from collections.abc import Callable
from typing import Any

import torch

from baechi.torchlib.private.lookup import named

# Torch's functions in C: the public ones take twice as long, since each checks its argument.
_PURPOSE = "send tensors between accelerators without a detour"

stream_at: Callable[[int], Any] = named(
    "torch._C._accelerator_getStream", _PURPOSE, torch.accelerator.current_stream
)
"""The stream on which this thread computes, by the index of a device."""

compute_on: Callable[[Any], None] = named(
    "torch._C._accelerator_setStream", _PURPOSE, torch.accelerator.set_stream
)
"""Sets the stream on which this thread computes, where its device is; that is the current one, too."""

current_index: Callable[[], int] = named(
    "torch._C._accelerator_getDeviceIndex", _PURPOSE, torch.accelerator.current_device_index
)
"""The index of the current device."""

make_current: Callable[[int], None] = named(
    "torch._C._accelerator_setDeviceIndex", _PURPOSE, torch.accelerator.set_device_index
)
"""Makes another device the current one, by its index."""


def sleep_kernel(kind: str) -> Callable[[int], None] | None:
    """A function that puts a kernel on the current stream that only waits, for a number of cycles.

    Torch's own tests use it. A device type without it is kept busy with matrix products.
    """
    return getattr(torch.get_device_module(kind), "_sleep", None)
