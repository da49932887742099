"""What the module of a device type (such as `torch.xpu`) has beside what torch promises."""

from collections.abc import Callable

import torch


def sleep_kernel(kind: str) -> Callable[[int], None] | None:
    """A function that puts a kernel on the current stream that only waits, for a number of cycles.

    Torch's own tests use it. A device type without it is kept busy with matrix products.

    Args:
        kind: a device type, as in `torch.device.type`.

    Returns:
        The function; None if the type has none.
    """
    return getattr(torch.get_device_module(kind), "_sleep", None)
