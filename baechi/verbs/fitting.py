"""Whether a model fits a cluster, what is missing if not, and how large its batch could be.

A model is captured with its batch and with twice that. Bytes and work grow linearly between, layer by
layer; so any other batch is a graph without another capture, and placing it says whether it fits. The
largest batch that fits is captured as well, to be sure: on `meta`, since the host may have no room for
it. Where the model's code looks at values, that cannot be, and the line through the two is the answer.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baechi.errors import CaptureError, PlacementError
from baechi.progress import progress, verbosity
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.records.layer_costs import LayerCosts
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in
from baechi.units import format_bytes
from baechi.verbs.judging import Run, judged, runner
from baechi.verbs.planning import place
from baechi.verbs.profiling import Names, profile

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
        largest_batch: the largest batch that fits; 0 if none does, None if the batch has no size, or the
            model does not run with twice that.
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
        most = "" if self.largest_batch is None else f"; the largest batch that fits is {self.largest_batch}"
        if self.fits:
            return f"fits with a batch{size}{most}"
        short = ", ".join([f"{name} by {format_bytes(size)}" for name, size in self.short_bytes.items()])
        return f"does not fit with a batch{size}: short on {short or 'every device'}{most}. {self.reason}"


def fits(
    model: nn.Module,
    batch: Any,
    cluster: Cluster,
    *,
    optimizer: str | None = None,
    training: bool | None = None,
    accumulate: bool = False,
    no_split_module_classes: Names | None = None,
    split_module_classes: Names | None = None,
    verify: bool = True,
    verbose: bool | None = None,
) -> Fit:
    """Say whether a model with a batch fits a cluster, before anything is moved or run.

    Args:
        model: the model; left exactly as found, and it may be on the `meta` device.
        batch: as `distribute` takes `example_inputs`; one example.
        cluster: the devices.
        optimizer: its name; its state counts.
        training: memory of training or of inference; `model.training` unless given.
        accumulate: whether gradients are added up over several steps; see `profile`.
        no_split_module_classes: class names, classes or qualified names kept whole.
        split_module_classes: the same of modules that are divided into those inside of them.
        verify: whether dry runs decide (`dry_run`), else simulated peaks do.
        verbose: whether to show progress on the standard error; on a terminal only unless given.

    Returns:
        Yes or no, the bytes that are short, and the largest batch that fits. The first dimension of
        the first tensor is the batch; the tensors that share it grow with it.

    Raises:
        CaptureError: the model does not run with the batch.
        ValueError: an unknown optimizer, or a device without rates.
    """
    inputs = Inputs.of(batch)
    capture = functools.partial(
        profile,
        model,
        cluster=cluster,
        training=training,
        accumulate=accumulate,
        no_split_module_classes=no_split_module_classes,
        split_module_classes=split_module_classes,
        source="estimate",
    )

    def refusal_of(graph: LayerGraph, given: Inputs | None) -> PlacementError | None:
        run = runner(model, [given], optimizer) if verify and given is not None else None
        return _refusal(graph, cluster, optimizer, run)

    size = _batch_size(inputs)
    with verbosity(verbose), progress("trying batches"):
        graph = capture(inputs)
        refusal = refusal_of(graph, inputs)
        largest = _largest(capture, graph, inputs, size, refusal_of) if size else None
    if largest is not None and size is not None and refusal is None:
        largest = max(largest, size)
    if refusal is None:
        return Fit(True, size, {}, largest)
    return Fit(False, size, refusal.short_bytes, largest, str(refusal).split("\n")[0])


def _refusal(
    graph: LayerGraph, cluster: Cluster, optimizer: str | None, run: Run | None
) -> PlacementError | None:
    """Why nothing is placed; None if something is. Dry runs judge, if there is something to run."""
    place_within = functools.partial(place, graph, optimizer=optimizer, effort=0)
    try:
        place_within(cluster) if run is None else judged(cluster, place_within, run)
    except PlacementError as error:
        return error
    return None


def _batch_size(inputs: Inputs) -> int | None:
    """The first dimension of the first tensor that has one."""
    given = [tensor for tensor in tensors_in(inputs.args, inputs.kwargs) if tensor.dim()]
    return given[0].shape[0] if given else None


def _resized(inputs: Inputs, size: int, wanted: int) -> Inputs:
    """The inputs with another batch: rows repeated, or left out."""

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            return tensor.new_empty((wanted, *tensor.shape[1:]))
        return tensor[torch.arange(wanted) % size]

    return _each_of_batch(resize, inputs, size)


def _on_meta(inputs: Inputs, size: int, wanted: int) -> Inputs:
    """Inputs of another batch that take no memory."""

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        shape = (wanted, *tensor.shape[1:])
        return tensor.new_empty(shape, device="meta", requires_grad=tensor.requires_grad)

    return _each_of_batch(resize, inputs, size)


def _each_of_batch(change: Callable[[torch.Tensor], torch.Tensor], inputs: Inputs, size: int) -> Inputs:
    """The inputs, with the tensors changed that have a row for each item of the batch."""

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        return change(tensor) if tensor.dim() and tensor.shape[0] == size else tensor

    args, kwargs = map_tensors(changed, (inputs.args, inputs.kwargs))
    return Inputs(*args, **kwargs)


def _largest(
    capture: Callable[[Inputs], LayerGraph],
    one: LayerGraph,
    inputs: Inputs,
    size: int,
    refusal_of: Callable[[LayerGraph, Inputs | None], PlacementError | None],
) -> int | None:
    """The largest batch that fits; None if the assumed batch dimension cannot be doubled."""
    try:
        double = capture(_resized(inputs, size, 2 * size))
    except CaptureError as error:
        logger.info("the first dimension of the first tensor is no batch, it seems: %s", error)
        return None
    if list(one) != list(double) or list(one.edges) != list(double.edges):
        logger.warning("the model takes another path with another batch: only this one is answered")
        return size if refusal_of(one, inputs) is None else 0

    def reckoned(batch: int) -> bool:
        return refusal_of(_between(one, double, size, batch), None) is None

    @functools.cache
    def captured(batch: int) -> bool:
        given = _on_meta(inputs, size, batch)
        return refusal_of(capture(given), given) is None

    largest = _up(reckoned)
    try:
        return _from(captured, largest)
    except CaptureError as error:
        logger.info("the largest batch (%d) is reckoned from smaller ones: %s", largest, error)
        return largest


def _up(fitting: Callable[[int], bool]) -> int:
    """The largest batch that fits: doubled until one does not fit, then found by bisection."""
    if not fitting(1):
        return 0
    low, high = 1, 2
    for _ in range(_MOST_DOUBLINGS):
        if not fitting(high):
            break
        low, high = high, 2 * high
    return _halved_in(fitting, low, high)


def _from(fitting: Callable[[int], bool], reckoned: int) -> int:
    """The largest batch that fits, near one that was reckoned: by strides that double, then by bisection."""
    low, high, stride = reckoned, reckoned + 1, 1
    if low and fitting(low):
        while fitting(high):
            low, high, stride = high, high + 2 * stride, 2 * stride
    while low and not fitting(low):
        low, high, stride = max(0, low - stride), low, 2 * stride
    return _halved_in(fitting, low, high)


def _halved_in(fitting: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number that fits, by bisection between one that fits and one that does not."""
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
