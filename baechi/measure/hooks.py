"""Seconds by running the model as it is: the design document's profiler (section 1.3.1, item 3).

Forward: a replaced `forward` of each layer reads the clock. Backward: every node of the
autograd graph has a sequence number; those made while a layer ran are its own.

    layer          a        b            c
    sequence    0 . . 3  4 . . 9   (10) 11 . 14        (10) is glue: its backward has no owner
"""

import logging
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import nn

from baechi.backend.real.stopwatch import Stopwatch
from baechi.errors import CaptureError
from baechi.measure.backward import clocked_backward
from baechi.measure.scale import scale_others
from baechi.records.device_map import ROOT
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.torchlib.modules.as_found import left_as_found
from baechi.torchlib.modules.intercept import (
    forward_restored,
    original_forward,
    replace_forward,
    restore_forward,
)
from baechi.torchlib.modules.on_meta import is_on_meta
from baechi.torchlib.private.autograd import next_sequence_number
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

logger = logging.getLogger(__name__)

_CLOCK = "_baechi_clock"


def measure(model: nn.Module, inputs: Inputs, graph: LayerGraph, *, rounds: int = 20) -> None:
    """Put measured seconds onto a graph, as one number for each layer.

    The first quarter of the rounds is dropped, the median of the others is taken. Glue is not
    timed: it gets its estimate, scaled as the layers' measurements relate to theirs.

    Args:
        model: the model, on the CPU; left exactly as found.
        inputs: arguments of the call.
        graph: its captured graph.
        rounds: how often the model runs, at least 1.

    Raises:
        ValueError: `rounds` is below 1.
        CaptureError: the model does not run, or has nothing to run backward from.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}: measuring takes at least 1")
    if is_on_meta(model):
        raise CaptureError(
            "the model is on the meta device, so it cannot run in place: measure it with source='layers', "
            "or take source='estimate'"
        )
    samples: list[_Round] = []
    with left_as_found(model, contents="all"), torch.set_grad_enabled(graph.training):
        # only on a difference: `train` sets all modules, and capture kept those frozen in another mode
        if model.training != graph.training:
            model.train(graph.training)
        for weight in model.parameters():
            weight.grad = None  # the old gradient is restored afterwards, and nothing is added to it
        for _ in range(rounds):
            samples.append(_one_round(model, inputs, graph))
    kept = samples[rounds // 4 :]
    for attribute in ("forward_s", "backward_s") if graph.training else ("forward_s",):
        _write(graph, attribute, [getattr(sample, attribute) for sample in kept])
    layers = {name for name, costs in graph.placed_costs() if costs.kind == "layer"}
    scale_others(graph, layers)  # glue is not timed
    logger.info("measured %d layers over %d rounds", len(samples[0].forward_s), len(kept))


@dataclass(slots=True)
class _Round:
    """The clock of one round.

    Args:
        names: qualified name by module id.
        turns: how often each module was called.
        forward_s, backward_s: by layer.
        starts, ends, owners: sequence numbers of each layer call, and the layer, in call order.
    """

    names: dict[int, str] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    forward_s: dict[str, float] = field(default_factory=dict)
    backward_s: dict[str, float] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)

    def owner_of(self, sequence: int) -> str | None:
        """The layer whose forward made an autograd node."""
        index = bisect_right(self.starts, sequence) - 1
        return self.owners[index] if index >= 0 and sequence < self.ends[index] else None


def _one_round(model: nn.Module, inputs: Inputs, graph: LayerGraph) -> _Round:
    sample = _Round()
    args, kwargs = map_tensors(_fresh, (inputs.args, inputs.kwargs))
    with _clocked(model, graph, sample):
        try:
            result = model(*args, **kwargs)
        except Exception as error:
            raise CaptureError(f"the model does not run with {inputs!r}: {error}") from error
    if graph.training:
        _time_backward(result, sample)
    return sample


def _fresh(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


@contextmanager
def _clocked(model: nn.Module, graph: LayerGraph, sample: _Round) -> Iterator[None]:
    modules = {name or ROOT: module for name, module in model.named_modules()}
    layers = {graph.module_of(name) for name, costs in graph.placed_costs() if costs.kind == "layer"}
    with ExitStack() as stack:
        for name in sorted(layers & modules.keys()):
            module = modules[name]
            sample.names[id(module)] = name
            module.__dict__[_CLOCK] = sample
            stack.callback(module.__dict__.pop, _CLOCK, None)
            stack.enter_context(forward_restored(module))
            replace_forward(module, _timed)
            stack.callback(restore_forward, module)
        yield


def _timed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    sample: _Round = module.__dict__[_CLOCK]
    name = sample.names[id(module)]
    turn = sample.turns.get(name, 0)
    sample.turns[name] = turn + 1
    layer = f"{name}#{turn}" if turn else name
    first = next_sequence_number()
    start_s = time.perf_counter()
    result = original_forward(module)(*args, **kwargs)
    sample.forward_s[layer] = time.perf_counter() - start_s
    sample.starts.append(first)
    sample.ends.append(next_sequence_number())
    sample.owners.append(layer)
    return result


def _time_backward(result: Any, sample: _Round) -> None:
    outputs = [t for t in tensors_in(result) if t.requires_grad and t.is_floating_point()]
    if not outputs:
        raise CaptureError("the model is in training mode, and no output of it requires a gradient")
    sample.backward_s = clocked_backward(outputs, sample.owner_of, Stopwatch(torch.device("cpu")))


def _write(graph: LayerGraph, attribute: str, samples: list[dict[str, float]]) -> None:
    for name in graph.placed():
        taken = [sample[name] for sample in samples if name in sample]
        graph.nodes[name][attribute] = median(taken) if taken else 0.0
        if taken and attribute == "forward_s":
            graph.nodes[name]["spread_s"] = max(taken) - min(taken)
