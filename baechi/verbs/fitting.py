"""Whether a model fits a cluster, what is missing if not, and how large its batch could be.

A model is captured with its batch and with twice that; or with twice and four times, if its code takes
another path with the batch itself, such as one example. Bytes and work grow linearly between, layer by
layer; so any other batch is a graph without another capture. Three questions narrow the answer down,
each more exact and slower than the one before:

    placed: does the graph of that batch find a placement?      doubled until it does not
    run dry: does a dry run of that placement fit?              from there, by bisection
    captured: the same with a capture of that batch             one by one, to be sure

Captures and dry runs take inputs on `meta`, since the host may have no room for them. Where the model's
code looks at values, neither can be, and the line through the two captures is the answer.
"""

import functools
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from baechi.errors import CaptureError, PlacementError
from baechi.place.evaluated import Effort
from baechi.place.recompute import Recompute
from baechi.progress import progress, verbosity
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.records.layer_costs import LayerCosts
from baechi.records.plan import Plan
from baechi.split.spec import Layers
from baechi.units import format_bytes
from baechi.verbs.batches import batch_on_meta, batch_size, resized_batch
from baechi.verbs.given import Optimizer, check_owner, name_of, tell_unused
from baechi.verbs.judging import judged, runner
from baechi.verbs.planning import placed, with_optimizer
from baechi.verbs.profiling import Names, default_cluster, profile
from baechi.verbs.split.asked import asked_to_split
from baechi.verbs.split.verb import plan_as_split

logger = logging.getLogger(__name__)

_GROW = LayerCosts.amounts("bytes")
_MOST_DOUBLINGS = 24


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
        size = "" if self.batch is None else f" of {self.batch}"
        largest = "not known" if self.largest_batch is None else self.largest_batch
        most = "" if self.batch is None else f"; the largest batch that fits is {largest}"
        if self.fits:
            return f"fits with a batch{size}{most}"
        short = ", ".join([f"{name} by {format_bytes(size)}" for name, size in self.short_bytes.items()])
        return f"does not fit with a batch{size}: short on {short or 'every device'}{most}. {self.reason}"


def fits(
    model: nn.Module,
    inputs: Any,
    cluster: Cluster | str | Path | None = None,
    *,
    optimizer: Optimizer = None,
    training: bool | None = None,
    accumulate: bool = False,
    max_memory: Mapping[int | str, int | str] | None = None,
    effort: Effort = 0,
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
        effort: how long each placement is searched for; see `place`.
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
    place_with = functools.partial(placed, placer="auto", optimizer=name, effort=effort, recompute=recompute)
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

    def refusal_of(graph: LayerGraph, batch: Inputs | None) -> PlacementError | None:
        run = runner(model, [batch], optimizer) if verify and batch is not None else None

        def plan_for(graph: LayerGraph) -> Plan:
            place_within = functools.partial(place_with, graph)
            return place_within(devices) if run is None else judged(devices, place_within, run)

        return _refusal(
            functools.partial(plan_as_split, with_optimizer(graph, name), layers, devices, plan_for)
        )

    size = batch_size(given)
    with verbosity(verbose), progress("trying batches"):
        graph = capture(given)
        refusal = refusal_of(graph, given)
        largest = _largest(capture, graph, given, size, refusal_of) if size else None
    if largest is not None and size is not None and refusal is None:
        largest = max(largest, size)
    return _answer(refusal, size, largest)


def graph_fits(
    graph: LayerGraph,
    cluster: Cluster,
    *,
    optimizer: str | None = None,
    effort: Effort = 0,
    recompute: Recompute = None,
) -> Fit:
    """Say whether the model of a graph fits a cluster, by simulation.

    Args:
        graph: the graph.
        cluster: the devices.
        optimizer: name of the optimizer whose state counts.
        effort: see `place`.
        recompute: as `distribute` takes it.

    Returns:
        Yes or no, and the bytes that are short; a graph does not say what another batch would take.
    """
    name = name_of(optimizer)
    place_with = functools.partial(
        placed, graph, placer="auto", optimizer=name, effort=effort, recompute=recompute
    )
    refusal = _refusal(functools.partial(place_with, cluster))
    return _answer(refusal, None, None)


def _answer(refusal: PlacementError | None, size: int | None, largest: int | None) -> Fit:
    if refusal is None:
        return Fit(True, size, {}, largest)
    return Fit(False, size, refusal.short_bytes, largest, str(refusal).split("\n")[0])


def _refusal(make_plan: Callable[[], Plan]) -> PlacementError | None:
    """Why nothing is placed; None if something is."""
    try:
        make_plan()
    except PlacementError as error:
        return error
    return None


def _largest(
    capture: Callable[[Inputs], LayerGraph],
    one: LayerGraph,
    inputs: Inputs,
    size: int,
    refusal_of: Callable[[LayerGraph, Inputs | None], PlacementError | None],
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

    def fitting(ask: Callable[[int], PlacementError | None]) -> Callable[[int], bool]:
        return functools.cache(lambda batch: ask(batch) is None)

    def line(batch: int) -> LayerGraph:
        return _between(one, double, first, batch)

    def other(batch: int) -> Inputs:
        return batch_on_meta(inputs, size, batch)

    placed = fitting(lambda batch: refusal_of(line(batch), None))
    run_dry = fitting(lambda batch: refusal_of(line(batch), other(batch)))
    captured = fitting(lambda batch: refusal_of(capture(other(batch)), other(batch)))
    doubled = _doubled(placed)
    largest = _from(run_dry, doubled, stride=max(1, doubled))
    try:
        return _from(captured, largest, stride=1)
    except CaptureError as error:
        logger.info("the largest batch (%d) is reckoned from smaller ones: %s", largest, error)
        return largest


def _path(graph: LayerGraph) -> tuple[list[str], list[tuple[str, str]]]:
    """What the model's code calls, and what reads what."""
    return list(graph), list(graph.edges)


def _doubled(fitting: Callable[[int], bool]) -> int:
    """The largest power of two that fits; 0 if one does not."""
    sizes = [2**power for power in range(_MOST_DOUBLINGS + 1)]
    return max(itertools.takewhile(fitting, sizes), default=0)


def _from(fitting: Callable[[int], bool], start: int, stride: int) -> int:
    """The largest batch that fits, near `start`: by strides that double, then by bisection."""
    low, high = start, start + stride
    if not low or fitting(low):
        while fitting(high):
            low, high, stride = high, high + 2 * stride, 2 * stride
    while low and not fitting(low):
        low, high, stride = max(0, low - stride), low, 2 * stride
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fitting(middle) else (low, middle)
    return low


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
