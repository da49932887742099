"""Seconds of a layer from what it computes and moves, for devices that were never measured.

The roofline model: a kernel is bound by arithmetic or by memory, whichever takes longer
(Williams, Waterman, Patterson, Communications of the ACM 52(4), 2009). Peak rates make it a lower
bound; it ranks layers and devices well enough to plan offline.
"""

from baechi.records import Device

BACKWARD_PER_FORWARD = 2
"""Backward computes two gradients (of input and weights) where forward computes one output."""


def layer_s(
    device: Device, flops: float, moved_bytes: float, dtype: str = "float32", *, backward: bool = False
) -> float:
    """Seconds of a layer's forward or backward at the device's peak rates.

    Args:
        device: who runs it.
        flops: arithmetic operations of its forward.
        moved_bytes: bytes that its forward reads and writes.
        dtype: name of the dtype it computes in; one without a rate has float32's, else the lowest.
        backward: seconds of the backward instead of the forward.

    Raises:
        ValueError: the device has no rate for what the layer does.
    """
    times = BACKWARD_PER_FORWARD if backward else 1
    compute_s = times * flops / _flops_per_s(device, dtype) if flops else 0.0
    if moved_bytes and not device.bytes_per_s:
        raise _no_rate(device, "bytes_per_s")
    return max(compute_s, times * moved_bytes / device.bytes_per_s if moved_bytes else 0.0)


def _flops_per_s(device: Device, dtype: str) -> float:
    rates = device.flops_per_s
    if not rates:
        raise _no_rate(device, "flops_per_s")
    return rates.get(dtype) or rates.get("float32") or min(rates.values())


def _no_rate(device: Device, what: str) -> ValueError:
    return ValueError(
        f"device {device.name!r} has no {what}, so its time cannot be estimated: "
        "give the device its rates, or make the cluster with like=... (a datasheet)"
    )
