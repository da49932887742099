"""What each layer really keeps and needs, read off the emulated cluster's memory, block by block.

The plain model runs on one emulated device. Stand-ins say which layer the code is in, autograd's
numbers which layer a backward operation belongs to; every block that is allocated is noted with its
layer, and when it was freed.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import nn

import baechi
from baechi.backend.virtual.machine.allocator import Allocator
from baechi.records import Inputs, LayerGraph
from baechi.records.device_map import ROOT
from baechi.torchlib.modules.intercept import original_forward, replace_forward, restore_forward
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in
from baechi.torchlib.tensors.storage import mark_of

_LEDGER = "_ledger"


@dataclass
class Life:
    """One block: whose it is, and from when to when it lives, in ticks."""

    layer: str | None
    forward: bool
    size_bytes: int
    born: int
    died: int | None = None
    gradient: bool = False


@dataclass
class Ledger:
    """A run, as memory saw it."""

    lives: list[Life] = field(default_factory=list)
    windows: dict[str, tuple[int, int]] = field(default_factory=dict)
    ranges: list[tuple[int, int, str]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    layer: str | None = None
    forward: bool = True
    tick: int = 0
    numbers: dict[int, int] = field(default_factory=dict)
    turned: int = 0

    def owner(self) -> str | None:
        """The layer that allocates now."""
        if self.forward:
            return self.layer
        node = torch._C._current_autograd_node()
        number = -1 if node is None else node._sequence_nr()
        return next((name for first, end, name in self.ranges if first <= number < end), None)

    def kept_bytes(self, layer: str) -> int:
        """What a layer made that was there when forward was over."""
        made = [life for life in self.lives if life.layer == layer and life.forward]
        return sum(life.size_bytes for life in made if life.died is None or life.died > self.turned)

    def temp_bytes(self, layer: str) -> int:
        """The most beyond what it leaves, in forward; the most at all, in backward."""
        made = [life for life in self.lives if life.layer == layer and life.forward]
        end = self.windows[layer][1]
        left = sum(life.size_bytes for life in made if life.died is None or life.died > end)
        back = [x for x in self.lives if x.layer == layer and not x.forward and not x.gradient]
        return max(_peak(made, end) - left, _peak(back, max((life.born for life in back), default=0)))


def _peak(lives: list[Life], end: int) -> int:
    changes = [(life.born, 1, life.size_bytes) for life in lives]
    changes += [
        (life.died, 0, -life.size_bytes) for life in lives if life.died is not None and life.died <= end
    ]
    live = peak = 0
    for _, _, change in sorted(changes):
        live += change
        peak = max(peak, live)
    return peak


def ledger_of(model: nn.Module, graph: LayerGraph, inputs: Inputs) -> Ledger:
    """Run a model on one emulated device, backward from its loss, and write down every block."""
    ledger = Ledger()
    modules = {name or ROOT: module for name, module in model.named_modules()}
    nodes = [graph.nodes[name] for name in graph.placed()]
    layers = {data["module"] for data in nodes if data["kind"] == "layer" and not data.get("unread")}
    with baechi.Cluster.virtual(1, memory="1TiB"), _noting(ledger):
        model.to("cpu:0")
        args, kwargs = map_tensors(lambda tensor: tensor.to("cpu:0"), (inputs.args, inputs.kwargs))
        with ExitStack() as stack, torch.set_grad_enabled(graph.training):
            for name in sorted(layers):
                module = modules[name]
                ledger.names[id(module)] = name
                module.__dict__[_LEDGER] = ledger
                stack.callback(module.__dict__.pop, _LEDGER)
                replace_forward(module, _called)
                stack.callback(restore_forward, module)
            result = model(*args, **kwargs)
        ledger.turned = ledger.tick
        if graph.training:
            ledger.forward = False
            _backward(model, result, ledger)
    return ledger


def _backward(model: nn.Module, result: Any, ledger: Ledger) -> None:
    outputs = [tensor for tensor in tensors_in(result) if tensor.grad_fn is not None]
    losses = [output for output in outputs if output.numel() == 1] or outputs
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    ones = [torch.ones_like(loss) for loss in losses]
    for gradient in torch.autograd.grad(losses, weights, ones, allow_unused=True):
        mark = None if gradient is None else mark_of(gradient)
        if mark is not None:
            ledger.lives[ledger.numbers[id(mark.block)]].gradient = True


def _called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    ledger: Ledger = module.__dict__[_LEDGER]
    name = ledger.names[id(module)]
    turn = ledger.turns.get(name, 0)
    ledger.turns[name] = turn + 1
    outer = ledger.layer
    if outer is not None:
        return original_forward(module)(*args, **kwargs)
    ledger.layer = node = f"{name}#{turn}" if turn else name
    begun, first = ledger.tick, torch._C._autograd._get_sequence_nr()
    result = original_forward(module)(*args, **kwargs)
    ledger.layer = None
    ledger.windows[node] = begun, ledger.tick
    ledger.ranges.append((first, torch._C._autograd._get_sequence_nr(), node))
    return result


@contextmanager
def _noting(ledger: Ledger) -> Iterator[None]:
    """Every block that the allocator counts, and every one that comes back."""
    numbers = ledger.numbers
    count, died = Allocator._count, Allocator.died

    def counted(self: Any, mark: Any, stream: Any) -> Any:
        block = count(self, mark, stream)
        ledger.tick += 1
        numbers[id(block)] = len(ledger.lives)
        ledger.lives.append(Life(ledger.owner(), ledger.forward, block.size_bytes, ledger.tick))
        return block

    def freed(self: Any, block: Any) -> None:
        ledger.tick += 1
        if id(block) in numbers:
            ledger.lives[numbers[id(block)]].died = ledger.tick
        died(self, block)

    with mock.patch.object(Allocator, "_count", counted), mock.patch.object(Allocator, "died", freed):
        yield
