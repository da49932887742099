"""Whether a model fits a cluster, what is missing if not, and how large its batch could be.

A model is captured with its batch and with twice that; or with twice and four times, if its code takes
another path with the batch itself, such as one example. Each batch that is tried is captured, placed, and
the placement is run dry, until one fits and the next one does not. That takes three tries most often, since
simulated placements say where to begin, and the bytes that are left or missing how far to go.

Captures and dry runs take inputs on `meta`, since the host may have no room for them. Where the model's
code looks at values, neither can be. But bytes and work grow linearly with the batch, layer by layer: so
there, and where to begin, the line through the two captures is the graph of another batch.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from baechi.errors import CaptureError, PlacementError
from baechi.place.evaluation import Effort
from baechi.place.recompute import Recompute
from baechi.progress import progress, verbosity
from baechi.records.cluster import Cluster
from baechi.records.device import shortage
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.records.layer_costs import LayerCosts
from baechi.records.plan import Plan
from baechi.split.spec import Layers
from baechi.verbs.batches import (
    batch_on_meta,
    batch_size,
    fitting_batches,
    largest_that_fits,
    resized_batch,
)
from baechi.verbs.given import Optimizer, check_owner, name_of, tell_unused
from baechi.verbs.judge import judged, runner
from baechi.verbs.plans import placed, with_optimizer
from baechi.verbs.profile import Names, default_cluster, profile
from baechi.verbs.split.request import asked_to_split
from baechi.verbs.split.verb import plan_as_split

logger = logging.getLogger(__name__)

_GROW = LayerCosts.amounts("bytes")


@dataclass(frozen=True)
class Fit:
    """The answer of `fits`; true where it is yes.

    Args:
        fits: whether some placement keeps every device's memory.
        batch: the size of the batch that was asked about.
        short_bytes: if not, the bytes that are missing, by device; of the attempt that came closest.
        largest_batch: the largest batch that fits; 0 if none does; None if it is not known: the batch has no
            size, or the model does not run with twice that, or takes other paths with twice and four times.
        reason: why not.
    """

    fits: bool
    batch: int | None
    short_bytes: Mapping[str, int]
    largest_batch: int | None
    reason: str = ""

    def __bool__(self) -> bool:
        return self.fits

    def __str__(self) -> str:
        size = "" if self.batch is None else f" with a batch of {self.batch}"
        largest = "not known" if self.largest_batch is None else self.largest_batch
        most = "" if self.batch is None else f"; the largest batch that fits is {largest}"
        if self.fits:
            return f"fits{size}{most}"
        short = shortage(self.short_bytes) or "every device"
        return f"does not fit{size}: short on {short}{most}; {self.reason}"


def fits(
    model: nn.Module,
    inputs: Any,
    cluster: Cluster | str | Path | None = None,
    *,
    optimizer: Optimizer = None,
    training: bool | None = None,
    accumulate: bool = False,
    max_memory: Mapping[int | str, int | str] | None = None,
    effort: Effort | None = None,
    recompute: Recompute = None,
    no_split_module_classes: Names | None = None,
    split_module_classes: Names | None = None,
    split: Layers | None = None,
    verify: bool = True,
    verbose: bool | None = None,
) -> Fit:
    """Say whether a model with a batch fits a cluster, before anything is moved or run.

    Args:
        model: the model; left exactly as found, and it may be on the `meta` device.
        inputs: as `distribute` takes them; one example, the batch.
        cluster: as `distribute` takes it.
        optimizer: its name, or an optimizer of this model; its state counts.
        training: memory of training or of inference; `model.training` unless given.
        accumulate: whether gradients are added up over several steps; see `profile`.
        max_memory: as `distribute` takes it.
        effort: how long each placement is searched for; see `place`. Unless given, that of the batch that
            is asked about as long as `distribute` does, so that both say the same; of others 0.
        recompute: as `distribute` takes it.
        no_split_module_classes: class names, classes or qualified names kept whole.
        split_module_classes: the same of modules that are divided into those inside of them.
        split: layers that are split, or `"auto"`, as `distribute` takes it.
        verify: whether dry runs decide (`dry_run`), else simulated peaks do.
        verbose: whether to show progress on the standard error; on a terminal only unless given.

    Returns:
        Yes or no, the bytes that are short, and the largest batch that fits. The first dimension of
        the first tensor is the batch; the tensors that share it grow with it.

    Raises:
        CaptureError: the model does not run with the batch.
        ValueError: an unknown optimizer, or a device without rates.
    """
    given = Inputs.of(inputs)
    layers, _ = asked_to_split(split, model, microbatches=False)
    devices = default_cluster() if cluster is None else Cluster.parse(cluster)
    devices = devices.with_memory(max_memory) if max_memory is not None else devices
    check_owner(optimizer, model.parameters(), type(model).__name__)
    tell_unused(optimizer, training=model.training if training is None else training)
    name = name_of(optimizer)
    place_with = functools.partial(placed, placer="auto", optimizer=name, recompute=recompute)
    capture = functools.partial(
        profile,
        model,
        cluster=devices,
        training=training,
        accumulate=accumulate,
        no_split_module_classes=no_split_module_classes,
        split_module_classes=split_module_classes,
        source="estimate",
    )

    def placed_with(
        graph: LayerGraph, batch: Inputs | None, how_long: Effort = effort or 0
    ) -> Plan | PlacementError:
        run = runner(model, [batch], optimizer) if verify and batch is not None else None

        def plan_for(graph: LayerGraph) -> Plan:
            place_within = functools.partial(place_with, graph, effort=how_long)
            return place_within(devices) if run is None else judged(devices, place_within, run)

        return _plan_or_refusal(
            functools.partial(plan_as_split, with_optimizer(graph, name), layers, devices, plan_for)
        )

    size = batch_size(given)
    with verbosity(verbose), progress("trying batches"):
        graph = capture(given)
        outcome = placed_with(graph, given)
        if effort is None and isinstance(outcome, PlacementError):
            outcome = placed_with(graph, given, 1)  # as `distribute` does
        largest = _largest(capture, graph, given, size, placed_with, outcome) if size else None
    if largest is not None and size is not None and isinstance(outcome, Plan):
        largest = max(largest, size)
    return _answer(outcome, size, largest)


def graph_fits(
    graph: LayerGraph,
    cluster: Cluster,
    *,
    optimizer: str | None = None,
    effort: Effort = 0,
    recompute: Recompute = None,
) -> Fit:
    """Say whether the model of a graph fits a cluster, by simulation."""
    name = name_of(optimizer)
    place_with = functools.partial(
        placed, graph, placer="auto", optimizer=name, effort=effort, recompute=recompute
    )
    return _answer(_plan_or_refusal(functools.partial(place_with, cluster)), None, None)


def _answer(outcome: Plan | PlacementError, size: int | None, largest: int | None) -> Fit:
    if isinstance(outcome, Plan):
        return Fit(True, size, {}, largest)
    return Fit(False, size, outcome.short_bytes, largest, str(outcome).split("\n")[0])


def _plan_or_refusal(make_plan: Callable[[], Plan]) -> Plan | PlacementError:
    """A plan, or why there is none."""
    try:
        return make_plan()
    except PlacementError as error:
        return error


def _spare_bytes(outcome: Plan | PlacementError) -> int:
    """The bytes that a plan leaves on all devices; below zero those that are missing where there is none."""
    if isinstance(outcome, PlacementError):
        return -max(1, sum(outcome.short_bytes.values()))
    peaks = outcome.timeline.peak_bytes
    return max(0, sum([one.memory_bytes - peaks.get(one.name, 0) for one in outcome.cluster.devices]))


def _largest(
    capture: Callable[[Inputs], LayerGraph],
    one: LayerGraph,
    inputs: Inputs,
    size: int,
    placed_with: Callable[[LayerGraph, Inputs | None], Plan | PlacementError],
    outcome: Plan | PlacementError,
) -> int | None:
    """The largest batch that fits; None if the batch cannot be doubled, or that changes the model's path."""
    first, path = size, _path(one)
    try:
        double = capture(resized_batch(inputs, size, 2 * size))
        if _path(double) != path:
            # as with one example: a part of one row lies in one piece, and is not copied
            first, one, path = 2 * size, double, _path(double)
            double = capture(resized_batch(inputs, size, 4 * size))
    except CaptureError as error:
        logger.info("the first dimension of the first tensor is no batch, it seems: %s", error)
        return None
    if _path(double) != path:
        logger.warning("the model takes another path with another batch: the largest one is not known")
        return None

    known = {size: outcome}

    def on_the_line(batch: int) -> LayerGraph:
        return _between(one, double, first, batch)

    def captured(batch: int) -> LayerGraph:
        return capture(batch_on_meta(inputs, size, batch))

    def spare(graph_of: Callable[[int], LayerGraph], batch: int) -> int:
        if batch not in known:
            known[batch] = placed_with(graph_of(batch), batch_on_meta(inputs, size, batch))
        return _spare_bytes(known[batch])

    about = fitting_batches(lambda batch: _spare_bytes(placed_with(on_the_line(batch), None)))
    try:
        return largest_that_fits(functools.partial(spare, captured), about)
    except CaptureError as error:
        logger.info("the largest batch is reckoned from smaller ones: %s", error)
        return largest_that_fits(functools.partial(spare, on_the_line), about)


def _path(graph: LayerGraph) -> tuple[list[str], list[tuple[str, str]]]:
    """What the model's code calls, and what reads what."""
    return list(graph), list(graph.edges)


def _between(one: LayerGraph, double: LayerGraph, size: int, batch: int) -> LayerGraph:
    """The graph of another batch: all bytes are linear in the batch, through the two known graphs."""
    part = (batch - size) / size

    def at(first: float, second: float) -> int:
        return max(0, round(first + part * (second - first)))

    graph = LayerGraph.from_networkx(one)
    for name, data in graph.nodes(data=True):
        for amount in _GROW:
            if amount in data or amount in double.nodes[name]:
                data[amount] = at(one.amount(name, amount), double.amount(name, amount))
    for source, target, data in graph.edges(data=True):
        if "bytes" in data:
            data["bytes"] = at(data["bytes"], double.edges[source, target]["bytes"])
    return graph
