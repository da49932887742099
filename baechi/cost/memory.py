"""What a layer takes of its device's memory: the one table, for placers, simulator and reports.

(a) parameters, (b) output, (c) gradients of parameters,
(d) gradient of the output, (e) what a layer needs only while it runs:

                inference       training
    permanent   (a) + held      (a) + optimizer state + the larger of (c) and kept
    temporary   (b) + (e)       (d) + (e) + the smaller of them

Kept is what autograd keeps, and what is held.

Gradients of parameters come with the layer's backward, which gives back what autograd kept: the step
before ended with `zero_grad()`, which drops them. With gradient accumulation they are always there
(`graph.graph["accumulate"]`).

Autograd keeps part of (b) only. An output, or the part of it, that autograd does not keep lives in
training as outputs do in inference: until the last layer that reads it has run. It counts as
temporary where it is larger than (d). What arrives from other devices counts there as long as it
lives; it depends on the placement, so it is in no table.

Held is what the model's code holds to the end, though no layer reads it any more: a cache, variables,
what it returns. If that stays where it was made (`graph.outputs_stay`), it is still there when backward
is over.

When backward is over the optimizer steps. It makes temporary tensors as large as what it works on:
for all weights of a device at once (torch's `foreach` implementations), or for one at a time, up to
three of them (its plain ones). What autograd kept is gone by then, but for what the model's code holds,
too (a cache that the caller got).
"""

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from baechi.cost.optimizers import OptimizerCosts, optimizer_costs
from baechi.records.graph import LayerGraph
from baechi.records.layer_costs import LayerCosts


class Footprint(NamedTuple):
    """Bytes that a layer takes, by how long they live.

    Args:
        resident_bytes: parameters and buffers; in training, gradients and optimizer state.
        saved_bytes: what autograd keeps, from the layer's forward to the end of its backward; and
            what the model's code holds.
        output_bytes: output that autograd does not keep: until it was last read.
        temp_bytes: while the layer runs, forward or backward.
        upstream_bytes: the gradient of its output, while its backward runs.
        update_bytes: temporary tensors of the optimizer, if it steps for all weights at once.
        largest_update_bytes: those of the largest weight.
        gradient_bytes: those of `resident_bytes` that are there from its backward on: gradients of
            parameters, and the part of `saved_bytes` still held after backward (a cache, an output that
            stays).
    """

    resident_bytes: int
    saved_bytes: int
    output_bytes: int
    temp_bytes: int
    upstream_bytes: int
    update_bytes: int = 0
    largest_update_bytes: int = 0
    gradient_bytes: int = 0

    @property
    def always_bytes(self) -> int:
        """What is there from the beginning to the end."""
        return self.resident_bytes - self.gradient_bytes

    @property
    def permanent_bytes(self) -> int:
        """What stays when the layer has run forward, or when it has run backward, whichever is more."""
        return self.always_bytes + max(self.saved_bytes, self.gradient_bytes)

    @property
    def forward_bytes(self) -> int:
        """What comes on top while the layer runs forward."""
        return self.output_bytes + self.temp_bytes

    @property
    def backward_bytes(self) -> int:
        """What comes on top while the layer runs backward."""
        return self.upstream_bytes + self.temp_bytes + min(self.saved_bytes, self.gradient_bytes)


def footprints(graph: LayerGraph, optimizer: str | None = None) -> dict[str, Footprint]:
    """The table for every layer."""
    layers = dict(graph.placed_costs())
    return dict(zip(layers, footprints_of(graph, layers.values(), optimizer), strict=True))


def footprints_of(
    graph: LayerGraph, layers: Iterable[LayerCosts], optimizer: str | None = None
) -> list[Footprint]:
    """The rows of some layers."""
    chosen = graph.graph.get("optimizer") if optimizer is None else optimizer
    spent = optimizer_costs(chosen)
    row = _in_training if graph.training else _in_inference
    accumulate = bool(graph.graph.get("accumulate"))
    found = []
    for costs in layers:
        part = row(costs, spent)
        if accumulate and graph.training:  # they are there already; a sum of several goes where it is added
            part = part._replace(gradient_bytes=part.gradient_bytes - ceil(costs.grad_bytes))
        if graph.training and graph.outputs_stay and costs.returned:
            stays = ceil(costs.held_bytes) + saved_returned_bytes(costs)
            resident, coming = part.resident_bytes + stays, part.gradient_bytes + stays
            part = part._replace(resident_bytes=resident, gradient_bytes=coming)
        found.append(part)
    return found


def saved_returned_bytes(costs: LayerCosts) -> int:
    """Bytes of what a layer makes that autograd keeps, and that the model returns."""
    returned = sum(map(ceil, (costs.returned or {}).values()))
    return min(max(0, returned - ceil(costs.held_bytes)), ceil(costs.saved_bytes - costs.lasting_bytes))


def step_bytes(graph: LayerGraph) -> int:
    """What a step takes on one device beside the parameters and buffers, at most."""
    rows = footprints(graph).values()
    kept = sum([row.saved_bytes + row.output_bytes for row in rows]) + ceil(graph.total("grad_bytes"))
    return kept + max([row.temp_bytes + row.upstream_bytes for row in rows], default=0)


def update_peak_bytes(total_bytes: int, largest_bytes: int) -> int:
    """What the optimizer's step needs on a device at most, whichever way it goes.

    All weights at once need all of them once. One by one, each needs itself twice, and what the one
    before left lies there still, until the first of the new ones is made: as much again, at most.
    """
    return max(total_bytes, 2 * largest_bytes + min(largest_bytes, total_bytes - largest_bytes))


def least_update_bytes(total_bytes: int, largest_bytes: int) -> int:
    """What the optimizer's step needs on a device at least: see `update_peak_bytes`."""
    return max(total_bytes, 2 * largest_bytes)


def _in_inference(costs: LayerCosts, optimizer: OptimizerCosts) -> Footprint:
    del optimizer
    resident = ceil(costs.param_bytes) + ceil(costs.buffer_bytes)
    passing = costs.output_bytes if costs.passing_bytes is None else costs.passing_bytes
    return Footprint(resident, ceil(costs.held_bytes), ceil(passing), ceil(costs.temp_bytes), 0)


def _in_training(costs: LayerCosts, optimizer: OptimizerCosts) -> Footprint:
    update = optimizer.update_bytes
    gradients, saved, lasting = ceil(costs.grad_bytes), ceil(costs.saved_bytes), ceil(costs.lasting_bytes)
    largest, coming = costs.largest_grad_bytes, costs.backward_grad_bytes
    largest = gradients if largest is None else ceil(largest)
    coming = gradients if coming is None else ceil(coming)  # of ties, the first backward makes them
    passing = costs.passing_bytes
    passing = max(0, costs.output_bytes - saved) if passing is None else passing
    return Footprint(
        resident_bytes=ceil(costs.param_bytes)
        + ceil(costs.buffer_bytes)
        + gradients * optimizer.state_bytes
        + coming
        + lasting,
        saved_bytes=saved + ceil(costs.held_bytes),
        output_bytes=ceil(passing),
        temp_bytes=ceil(costs.temp_bytes),
        upstream_bytes=ceil(costs.upstream_grad_bytes),
        update_bytes=gradients * update,
        largest_update_bytes=largest * update,
        gradient_bytes=coming + lasting,
    )
