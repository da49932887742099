"""Seconds by running the model as it is.

Forward: a replaced `forward` of each layer reads the clock. Backward: every node of the
autograd graph has a sequence number; those made while a layer ran are its own.

    layer          a        b            c
    sequence    0 . . 3  4 . . 9   (10) 11 . 14        (10) is glue: its backward has no owner
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from operator import add
from typing import Any

import torch
from torch import nn

from baechi.backend.real.stopwatch import Stopwatch
from baechi.backend.real.streams import device_behind
from baechi.errors import CaptureError
from baechi.measure.backward import Calls, clocked_backward
from baechi.measure.scale import put_seconds, scale_others
from baechi.measure.timed_call import Call, CallClock, Took, typical
from baechi.records.device import Device
from baechi.records.device_map import ROOT
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.torchlib.modules.as_found import left_as_found
from baechi.torchlib.modules.compiled_modules import bring_back, set_aside
from baechi.torchlib.modules.intercept import (
    forward_restored,
    forward_to_run,
    replace_forward,
    restore_forward,
)
from baechi.torchlib.modules.on_meta import is_on_meta
from baechi.torchlib.private.autograd import next_sequence_number
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

logger = logging.getLogger(__name__)

_CLOCK = "_baechi_clock"


def measure(
    model: nn.Module,
    inputs: Inputs,
    graph: LayerGraph,
    *,
    rounds: int = 20,
    device: Device | None = None,
    placed: AbstractContextManager[object] | None = None,
) -> None:
    """Put measured seconds onto a graph.

    The model runs until it is warm: until a round takes hardly less than the fastest before. The medians
    of the rounds after that count. What is not timed (functional ops, layers that run only sometimes) gets
    its estimate, scaled as the layers' measurements relate to theirs. On a device with streams, host and
    device are measured apart.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}: measuring takes at least 1")
    if is_on_meta(model):
        raise CaptureError(
            "the model is on the meta device, so it cannot run in place: measure it with source='layers', "
            "or take source='estimate'"
        )
    here = device_behind("cpu" if device is None else device.name)
    clock = CallClock(Stopwatch(here))
    # weights that are copied to the device cannot be changed where they were
    moves = placed is not None and all(weight.device != here for weight in model.parameters())
    samples: list[_Round] = []
    warm_ups_s: list[float] = []
    with (
        left_as_found(model, contents="no parameters" if moves else "all"),
        torch.set_grad_enabled(graph.training),
        ExitStack() as stack,
    ):
        # only on a difference: `train` sets all modules, and capture kept those frozen in another mode
        if model.training != graph.training:
            model.train(graph.training)
        for weight in model.parameters():
            weight.grad = None  # the old gradient is restored afterwards, and nothing is added to it
        stack.enter_context(placed or nullcontext())
        while not clock.is_warm(warm_ups_s):
            sample = _one_round(model, inputs, graph, clock)
            warm_ups_s.append(sum([took.device_s for took in sample.took().values()]))
            for call in sample.all_calls():
                clock.learn(call)
        for _ in range(rounds):
            samples.append(_one_round(model, inputs, graph, clock))
    measured = _write(graph, [sample.took() for sample in samples], device, clock.watch.has_streams)
    scale_others(graph, measured, device)
    logger.info("measured %d layers over %d rounds", len(measured), rounds)


Key = tuple[str, str]
"""A layer, and `"forward"` or `"backward"`."""


@dataclass(slots=True)
class _Round:
    """What was noted in one round.

    Args:
        clock: of the device.
        names: qualified name by module id.
        turns: how often each module was called.
        open: how many timed calls are running, one inside the other.
        forward, backward: the timed calls, by layer.
        starts, ends, owners: sequence numbers of each layer call, and the layer, in call order.
    """

    clock: CallClock
    names: dict[int, str] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    open: int = 0
    forward: Calls = field(default_factory=dict)
    backward: Calls = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)

    def owner_of(self, sequence: int) -> str | None:
        """The layer whose forward made an autograd node."""
        index = bisect_right(self.starts, sequence) - 1
        return self.owners[index] if index >= 0 and sequence < self.ends[index] else None

    def all_calls(self) -> Iterator[Call]:
        """Every timed call."""
        for calls in (*self.forward.values(), *self.backward.values()):
            yield from calls

    def took(self) -> dict[Key, Took]:
        """What each layer took, in both directions; the device is idle."""
        return {
            (name, phase): reduce(add, [self.clock.took(call) for call in calls])
            for phase, by_layer in (("forward", self.forward), ("backward", self.backward))
            for name, calls in by_layer.items()
            if calls
        }


def _one_round(model: nn.Module, inputs: Inputs, graph: LayerGraph, clock: CallClock) -> _Round:
    sample = _Round(clock)
    args, kwargs = map_tensors(_fresh, (inputs.args, inputs.kwargs))
    with _clocked(model, graph, sample):
        try:
            result = model(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise CaptureError(f"the model does not run with {inputs!r}: {error}") from error
    if graph.training:
        outputs = [t for t in tensors_in(result) if t.requires_grad and t.is_floating_point()]
        if not outputs:
            raise CaptureError("the model is in training mode, and no output of it requires a gradient")
        sample.backward = clocked_backward(outputs, sample.owner_of, clock)
    clock.watch.wait()
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
            set_aside(module, runs=True)
            stack.callback(bring_back, module)
        yield


def _timed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    sample: _Round = module.__dict__[_CLOCK]
    name = sample.names[id(module)]
    turn = sample.turns.get(name, 0)
    sample.turns[name] = turn + 1
    layer = f"{name}#{turn}" if turn else name
    first = next_sequence_number()
    call = sample.clock.begin(layer, inside=sample.open > 0)
    sample.open += 1
    result = forward_to_run(module)(*args, **kwargs)
    sample.open -= 1
    sample.clock.end(call)
    sample.forward[layer] = [call]
    sample.starts.append(first)
    sample.ends.append(next_sequence_number())
    sample.owners.append(layer)
    return result


def _write(
    graph: LayerGraph, rounds: list[dict[Key, Took]], device: Device | None, host_apart: bool
) -> set[str]:
    """Put the medians on the layers that ran, and on weights that nothing reads; returns their names."""
    ran = {name for one in rounds for name, _ in one}
    layers = [name for name, costs in graph.placed_costs() if costs.kind == "layer"]
    measured = [name for name in layers if name in ran or graph.costs(name).unread]
    for name, phase in product(measured, ("forward", "backward") if graph.training else ("forward",)):
        data = graph.nodes[name]
        taken = [one[name, phase] for one in rounds if (name, phase) in one]
        took = typical(taken) if taken else Took(0.0, 0.0)
        put_seconds(data, f"{phase}_s", took.device_s, device)
        if host_apart:
            data[f"host_{phase}_s"] = took.host_s
        if taken and phase == "forward":
            seconds = [one.device_s for one in taken]
            data["spread_s"] = max(seconds) - min(seconds)
    return set(measured)
