"""A device of an emulated cluster is full."""

import torch

from baechi.errors import RecoverableError


class DeviceMemoryError(RecoverableError, torch.OutOfMemoryError):
    """A device has no room for what was to be allocated.

    Code that catches `torch.OutOfMemoryError` catches it, too. It is recoverable: what was not allocated
    changes nothing, the model keeps its weights, what the call had made goes with the error's traceback,
    and a smaller batch needs less.

    Attributes:
        device: the device's name.
        kind: its kind, such as `"A100-80GB"`.
        needed_bytes: what was to be allocated.
        live_bytes: what was allocated then.
        memory_bytes: how much the device has.
    """

    def __init__(
        self, what: str, *, device: str, kind: str = "", needed_bytes: int, live_bytes: int, memory_bytes: int
    ) -> None:
        self.device = device
        self.kind = kind
        self.needed_bytes = needed_bytes
        self.live_bytes = live_bytes
        self.memory_bytes = memory_bytes
        short_bytes = live_bytes + needed_bytes - memory_bytes
        limit = f"{memory_bytes:,}{f' (of {kind})' if kind else ''}"
        super().__init__(
            f"{device} is out of memory: {what} needs {needed_bytes:,} bytes, {live_bytes:,} of {limit} are "
            f"in use, {short_bytes:,} are missing. Use a smaller batch, or more or larger devices"
        )
