"""Costs of a model for a batch with more or fewer rows, without another capture."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from baechi.cost.roofline import Work
from baechi.records.attributes import scaled
from baechi.records.device import Device
from baechi.records.graph import LayerGraph
from baechi.records.layer_costs import LayerCosts

_OF_WEIGHTS = {
    "param_bytes", "buffer_bytes", "grad_bytes", "largest_grad_bytes", "backward_grad_bytes", "moved_bytes",
    "backward_moved_bytes",
}  # fmt: skip
"""These do not grow with the batch, or not wholly."""

_GROW = [name for unit in ("bytes", "FLOP") for name in LayerCosts.amounts(unit) if name not in _OF_WEIGHTS]


def of_rows(graph: LayerGraph, share: float, devices: Iterable[Device]) -> LayerGraph:
    """The graph of another batch: work and bytes grow with the rows; weights, and reading them, do not.

    Seconds grow as the roofline's do; where a device has no rates, with the rows.
    """
    other, by_kind = LayerGraph.from_networkx(graph), {device.kind: device for device in devices}
    for _, costs in other.nodes(data=True):
        for amount in _GROW:
            if amount in costs:
                costs[amount] = scaled(costs[amount], share)
        for phase in ("", "backward_"):
            _move(costs, phase, share)
    for name, costs in other.nodes(data=True):
        for seconds, backward in (("forward_s", False), ("backward_s", True)):
            if seconds in costs:
                works = [Work.of(one, name, backward=backward) for one in (graph, other)]
                costs[seconds] = _seconds(costs[seconds], works, graph.costs(name).dtype, by_kind, share)
    for *_, costs in other.edges(data=True):
        for name in ("bytes", "parts", "copies"):
            if name in costs:
                costs[name] = scaled(costs[name], share)
    return other


def _move(costs: dict[str, Any], phase: str, share: float) -> None:
    """Scale what is read and written. A pass over the weights reads them all, or writes their gradients."""
    flops = costs.get("flops", 0)
    passes = (
        costs.get("backward_flops", 0) / flops if phase and flops else 1
    )  # 1 without gradient of its input
    left = passes * costs.get("param_bytes", 0)
    kernels, fixed = [], 0.0
    for its_flops, moved in costs.get(f"{phase}arithmetic", ()):
        own = min(moved, left)
        left -= own
        fixed += own
        kernels.append((share * its_flops, own + share * (moved - own)))
    if kernels:
        costs[f"{phase}arithmetic"] = kernels
    moved_bytes = costs.get(f"{phase}moved_bytes", 0)
    if moved_bytes:
        costs[f"{phase}moved_bytes"] = fixed + share * (moved_bytes - fixed)


def _seconds(
    seconds: float | Mapping[str, float],
    works: Sequence[Work],
    dtype: str,
    by_kind: Mapping[str, Device],
    share: float,
) -> float | dict[str, float]:
    if not isinstance(seconds, Mapping):
        return seconds * share
    found = {}
    for kind, known_s in seconds.items():
        device = by_kind.get(kind)
        rated = device is not None and device.bytes_per_s and device.flops_per_s
        before, after = [work.seconds(device, dtype) if rated and device else 0.0 for work in works]
        found[kind] = known_s * (after / before if before else share)
    return found
