"""Seconds of a layer from what it computes and moves, for devices that were never measured.

The roofline model: a kernel is bound by arithmetic or by memory, whichever takes longer
(Williams, Waterman, Patterson, Communications of the ACM 52(4), 2009). Peak rates make it a lower
bound; it ranks layers and devices well enough to plan offline.
"""

from dataclasses import dataclass

from baechi.records import Device, LayerGraph
from baechi.records.layer_costs import LayerCosts

BACKWARD_PER_FORWARD = 2
"""Backward computes two gradients (of input and weights) where forward computes one output. For graphs
that do not say what backward does."""

_ADDITION_PASSES = 3
"""Adding a gradient to another one reads both and writes one."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a layer computes and moves in one direction.

    Args:
        flops: arithmetic operations.
        moved_bytes: bytes read and written.
        kernels: operations launched.
        arithmetic: of each kernel with arithmetic, its part of `flops` and of `moved_bytes`. What is in none
            of them is taken for one kernel more.
    """

    flops: float
    moved_bytes: float
    kernels: float
    arithmetic: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(cls, graph: LayerGraph, name: str, *, backward: bool) -> "Work":
        """That of a node.

        Where gradients of weights stay from step to step, its backward adds to them.
        """
        costs, times = graph.costs(name), 1.0
        amounts, arithmetic = (costs.flops, costs.moved_bytes, costs.kernels), costs.arithmetic
        if backward and graph.graph.get("backward_captured", False):
            amounts = (costs.backward_flops, costs.backward_moved_bytes, costs.backward_kernels)
            arithmetic = costs.backward_arithmetic
        elif backward:
            times = float(BACKWARD_PER_FORWARD)
        flops, moved_bytes, kernels = [times * amount for amount in amounts]
        if backward and graph.graph.get("accumulate"):
            added = cls.of_additions(costs)
            moved_bytes, kernels = moved_bytes + added.moved_bytes, kernels + added.kernels
        each = [(times * its_flops, times * its_bytes) for its_flops, its_bytes in arithmetic]
        return cls(flops, moved_bytes, kernels, tuple(each))

    @classmethod
    def of_additions(cls, costs: LayerCosts) -> "Work":
        """Adding gradients of the weights that a layer owns to those that are there: a kernel for each.

        Autograd does so in steps that keep the gradients of earlier ones, and in microbatches.
        """
        if not costs.grad_bytes:
            return cls(0, 0, 0)
        weights = len(costs.weights or ()) if costs.grads is None else costs.grads  # buffers have none
        return cls(0, _ADDITION_PASSES * costs.grad_bytes, max(1, weights))

    @classmethod
    def of_sum(cls, size_bytes: float, before: "Work | None" = None) -> "Work":
        """Adding one gradient to another one."""
        moved_bytes, kernels = (0.0, 0.0) if before is None else (before.moved_bytes, before.kernels)
        return cls(0, moved_bytes + _ADDITION_PASSES * size_bytes, kernels + 1)

    def seconds(self, device: Device, dtype: str) -> float:
        """How long it takes at a device's peak rates.

        Kernels run one after the other. So what one of them moves is not hidden behind the arithmetic of
        another one.
        """
        rest = (
            max(0.0, self.flops - sum([flops for flops, _ in self.arithmetic])),
            max(0.0, self.moved_bytes - sum([moved_bytes for _, moved_bytes in self.arithmetic])),
        )
        return sum([layer_s(device, *kernel, dtype) for kernel in (*self.arithmetic, rest)])


def layer_s(device: Device, flops: float, moved_bytes: float, dtype: str = "float32") -> float:
    """Seconds of some work at a device's peak rates."""
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
