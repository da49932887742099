"""Seconds of a layer from what it computes and moves, for devices that were never measured.

The roofline model: a kernel is bound by arithmetic or by memory, whichever takes longer
(Williams, Waterman, Patterson, Communications of the ACM 52(4), 2009). Peak rates make it a lower
bound; it ranks layers and devices well enough to plan offline.
"""

from dataclasses import dataclass

from baechi.records import Device, LayerGraph

BACKWARD_PER_FORWARD = 2
"""Backward computes two gradients (of input and weights) where forward computes one output. For graphs
that do not say what backward does."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a layer computes and moves in one direction.

    Args:
        flops: arithmetic operations.
        moved_bytes: bytes read and written.
        kernels: operations launched.
        memory_bound_bytes: the part of `moved_bytes` that kernels without arithmetic move.
    """

    flops: float
    moved_bytes: float
    kernels: float
    memory_bound_bytes: float = 0.0

    @classmethod
    def of(cls, graph: LayerGraph, name: str, *, backward: bool) -> "Work":
        """That of a node.

        Args:
            graph: a captured graph.
            name: the node.
            backward: in backward, else in forward.
        """
        costs = graph.costs(name)
        amounts = (costs.flops, costs.moved_bytes, costs.kernels, costs.memory_bound_bytes)
        times = 1.0
        if backward and graph.graph.get("backward_captured", False):
            amounts = (
                costs.backward_flops,
                costs.backward_moved_bytes,
                costs.backward_kernels,
                costs.backward_memory_bound_bytes,
            )
        elif backward:
            times = float(BACKWARD_PER_FORWARD)
        return cls(*[times * amount for amount in amounts])

    def seconds(self, device: Device, dtype: str) -> float:
        """How long it takes at a device's peak rates.

        Kernels run one after the other. So what a memory-bound kernel moves is not hidden behind the
        arithmetic of another one.

        Args:
            device: who does it.
            dtype: name of the dtype it computes in.

        Raises:
            ValueError: the device has no rate for what the layer does.
        """
        computing_s = layer_s(device, self.flops, self.moved_bytes - self.memory_bound_bytes, dtype)
        return computing_s + layer_s(device, 0.0, self.memory_bound_bytes, dtype)


def layer_s(device: Device, flops: float, moved_bytes: float, dtype: str = "float32") -> float:
    """Seconds of some work at a device's peak rates.

    Args:
        device: who does it.
        flops: arithmetic operations.
        moved_bytes: bytes read and written.
        dtype: name of the dtype it computes in; one without a rate has float32's, else the lowest.

    Raises:
        ValueError: the device has no rate for what the layer does.
    """
    compute_s = flops / _flops_per_s(device, dtype) if flops else 0.0
    if moved_bytes and not device.bytes_per_s:
        raise _no_rate(device, "bytes_per_s")
    return max(compute_s, moved_bytes / device.bytes_per_s if moved_bytes else 0.0)


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
