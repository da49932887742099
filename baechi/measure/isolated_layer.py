"""One layer, alone on the device, with made-up values: how long it takes."""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import nn

from baechi.backend.real.stopwatch import Stopwatch
from baechi.measure.backward import clocked_backward
from baechi.measure.timed_call import Call, CallClock, Took, typical
from baechi.torchlib.autograd_nodes import node_of
from baechi.torchlib.modules.arguments import Arguments
from baechi.torchlib.modules.intercept import forward_restored
from baechi.torchlib.modules.on_meta import is_on_meta
from baechi.torchlib.private.autograd import next_sequence_number
from baechi.torchlib.random_state import random_state_kept
from baechi.torchlib.tensors.pytree import tensors_in

LEAST_ROUNDS = 3
ENOUGH_S = 1.0
"""No further rounds once the rounds of one layer took so long together."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """What a layer takes.

    Args:
        forward, backward: medians.
        spread_s: how far the forward rounds lay apart.
        temp_bytes: what the allocator gave beyond what stays; 0 where none counts.
    """

    forward: Took
    backward: Took
    spread_s: float
    temp_bytes: int = 0


def time_alone(
    layer: nn.Module,
    arguments: Arguments,
    *,
    training: bool | None,
    rounds: int,
    watch: Stopwatch,
) -> Seconds:
    """Run a copy of a layer by itself, forward and backward.

    The copy has weights of its own: made-up ones if the layer's are on the `meta` device. It runs until it
    is warm, and then for the rounds that count; what takes long runs less often, at least three times. On
    a device with streams its weights are out of the caches, as if the rest of a model had run meanwhile.
    """
    with _copied(layer, watch.device) as alone, random_state_kept():
        torch.manual_seed(0)
        if training is not None:
            alone.train(training)
        maker, clock = _Maker(alone, arguments, watch.device), CallClock(watch)
        taken: list[_Round] = []
        warm_ups_s: list[float] = []
        begun_s = watch.host_s()
        while not clock.is_warm(warm_ups_s) and watch.host_s() - begun_s < ENOUGH_S:
            one = _one_round(alone, maker, arguments, clock)
            warm_ups_s.append(one.forward.device_s + one.backward.device_s)
            for call in one.calls:
                clock.learn(call)
        while len(taken) < rounds:
            if len(taken) >= LEAST_ROUNDS and watch.host_s() - begun_s > ENOUGH_S:
                break
            taken.append(_one_round(alone, maker, arguments, clock))
    forward_s = [one.forward.device_s for one in taken]
    return Seconds(
        typical([one.forward for one in taken]),
        typical([one.backward for one in taken]),
        max(forward_s) - min(forward_s),
        min([one.temp_bytes for one in taken]),
    )


@dataclass(frozen=True, slots=True)
class _Round:
    """What one round took, and its timed calls."""

    forward: Took
    backward: Took
    temp_bytes: int
    calls: list[Call]


@contextmanager
def _copied(layer: nn.Module, device: torch.device) -> Iterator[nn.Module]:
    """A copy of a layer on a device, with real weights."""
    with ExitStack() as stack:
        for module in layer.modules():
            stack.enter_context(forward_restored(module))  # another model's runtime, if it is shared
        alone = copy.deepcopy(layer)
    if is_on_meta(alone):
        alone.to_empty(device=device)
        with torch.no_grad():
            for tensor in (*alone.parameters(), *alone.buffers()):
                if tensor.is_floating_point():
                    tensor.normal_(0, 0.02)
                else:
                    tensor.zero_()
    yield alone.to(device)


class _Maker:
    """Makes values for arguments: random ones, indices in range; the same ones in each round.

    Args:
        layer: who gets them.
        arguments: what they stand for.
        device: where the layer is.
    """

    def __init__(self, layer: nn.Module, arguments: Arguments, device: torch.device) -> None:
        embeddings = [m for m in layer.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
        sizes = [module.num_embeddings for module in embeddings]
        for blank in tensors_in(arguments.args, arguments.kwargs):
            if blank.is_floating_point():
                sizes += [size for size in blank.shape if size > 1]
        self._indices = min(sizes, default=1)
        self._arguments = arguments
        self._device = device
        self._made: list[torch.Tensor] = []

    def fresh(self) -> tuple[Any, Any]:
        """Arguments for one call, as outputs of other layers would be: they may be written in place."""
        made = iter(self._made)
        args, kwargs = self._arguments.filled(lambda blank: self._next(blank, made))
        return tuple(map(self._there, args)), {key: self._there(value) for key, value in kwargs.items()}

    def _there(self, value: Any) -> Any:
        """A layer that is handed a device is handed its own."""
        return self._device if isinstance(value, torch.device) else value

    def clear(self) -> None:
        """Forget the gradients of what was made."""
        for value in self._made:
            value.grad = None

    def _next(self, blank: torch.Tensor, made: Iterator[torch.Tensor]) -> torch.Tensor:
        value = next(made, None)
        if value is None:
            value = self._make(blank)
            self._made.append(value)
        return value.clone()

    def _make(self, blank: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(blank.size(), blank.stride(), dtype=blank.dtype, device=self._device)
        if blank.is_floating_point() or blank.is_complex():
            made.normal_()
        elif blank.dtype == torch.bool:
            made.fill_(True)
        else:
            made.random_(0, max(1, self._indices))
        return made.requires_grad_(blank.requires_grad)


def _one_round(layer: nn.Module, maker: _Maker, arguments: Arguments, clock: CallClock) -> _Round:
    watch = clock.watch
    watch.empty_caches()  # and then come the arguments, as right after the layer that makes them
    args, kwargs = maker.fresh()
    dtype = arguments.autocast
    casting = torch.autocast(watch.device.type, dtype=dtype) if dtype is not None else nullcontext()
    with torch.set_grad_enabled(arguments.grad), casting:
        first = next_sequence_number()
        watch.wait()
        watch.restart_peak()
        call = clock.begin("forward")
        result = layer(*args, **kwargs)
        clock.end(call)
        own = range(first, next_sequence_number())
    watch.wait()
    forward, kept_bytes = clock.took(call), watch.live_bytes()
    temp_bytes = watch.peak_bytes() - kept_bytes
    outputs = [tensor for tensor in tensors_in(result) if node_of(tensor) is not None]
    if not outputs:
        return _Round(forward, Took(0.0, 0.0), temp_bytes, [call])
    watch.restart_peak()
    calls = clocked_backward(outputs, lambda number: "layer" if number in own else None, clock)
    backward = reduce(add, [clock.took(node) for node in calls.get("layer", ())], Took(0.0, 0.0))
    beside = [*outputs, *[weight for weight in layer.parameters() if weight.grad is not None]]
    known_bytes = kept_bytes + sum([tensor.numel() * tensor.element_size() for tensor in beside])
    layer.zero_grad()
    maker.clear()
    temp_bytes = max(temp_bytes, watch.peak_bytes() - known_bytes)
    return _Round(forward, backward, temp_bytes, [call, *calls.get("layer", ())])
