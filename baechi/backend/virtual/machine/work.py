"""What kernels compute and move, and who is still to be charged for them."""

from dataclasses import dataclass
from typing import NamedTuple

from baechi.cost.roofline import layer_s
from baechi.records.device import Device


class Work(NamedTuple):
    """What a kernel computes and moves.

    Args:
        flops: arithmetic operations.
        moved_bytes: bytes read and written.
        dtype: of the arithmetic.
    """

    flops: float
    moved_bytes: float
    dtype: str

    def seconds(self, device: Device) -> float:
        """How long it runs."""
        if not device.bytes_per_s or not device.flops_per_s:
            return 0.0
        return layer_s(device, self.flops, self.moved_bytes, self.dtype) / device.speed


@dataclass(slots=True, eq=False)
class Due:
    """A kernel whose result belongs nowhere yet: an operator made it of nothing, as masks are made.

    Args:
        name: the operator.
        work: what it computes and moves.
        charged: whether a device has run it.
    """

    name: str
    work: Work
    charged: bool = False
