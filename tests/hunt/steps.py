"""Some steps of a model, and what they leave behind."""

import copy
import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from baechi.run.steady.paths import full_path_only

from .leaves import attributes, leaves
from .recipe import Recipe
from .ways import Way
from .world import World


@dataclass
class Left:
    """What steps left, by what it is: `"1 output.first"`, `"2 gradient of l1.weight"`.

    Args:
        values: tensors on the host, and numbers.
        faults: what needs no comparison to be wrong: a kind, and where.
    """

    values: dict[str, Any] = field(default_factory=dict)
    faults: list[tuple[str, str]] = field(default_factory=list)


def inputs(recipe: Recipe, step: int, rows: int | None = None) -> tuple[Tensor, Tensor]:
    """The batch of a step, on the host.

    Args:
        recipe: the model.
        step: its number.
        rows: how many; the recipe's, unless given.
    """
    made = torch.Generator().manual_seed(1000 * recipe.seed + step)
    shape = rows or recipe.rows, 4
    x, y = (torch.randn(shape, generator=made, dtype=torch.double) for _ in range(2))
    return x, y


def run(model: nn.Module, recipe: Recipe, way: Way, world: World) -> Left:
    """Run the steps.

    Args:
        model: plain or distributed.
        recipe: what it was made from.
        way: what the caller does.
        world: where values lie.
    """
    left = Left()
    weights = [*model.parameters()]
    optimizer = torch.optim.SGD(weights, 0.05) if way.caller == "optimizer" and weights else None
    model.train(way.training)
    with full_path_only() if way.full else nullcontext(), _collections_counted(left):
        for number in range(1, way.steps + 1):
            if way.caller == "alternates" and number == 2:
                model.train(not way.training)
            if way.caller != "accumulates":
                model.zero_grad()
            _step(model, recipe, way, world, number, left)
            if optimizer is not None and model.training:
                optimizer.step()
    return left


def _step(model: nn.Module, recipe: Recipe, way: Way, world: World, number: int, left: Left) -> None:
    rows = recipe.rows + 2 if way.caller == "rows" and number == 2 else recipe.rows
    x, y = world.home(inputs(recipe, number, rows))
    if way.caller == "copies":
        x, y = copy.deepcopy((x, y))
    if model.training:
        x.requires_grad_()
    devices_before = x.device, y.device
    torch.manual_seed(recipe.seed + number)
    quick = way.caller == "inference" and not model.training
    with torch.inference_mode() if quick else torch.set_grad_enabled(model.training):
        out = model(x, y)
        if model.training:
            _backward(out, way, world)
    if (x.device, y.device) != devices_before:
        left.faults.append(("input moved", f"{number}: from {devices_before} to {(x.device, y.device)}"))
    for path, leaf in leaves(out):
        if isinstance(leaf, Tensor) and leaf.device != devices_before[0]:
            left.faults.append(
                ("output elsewhere", f"{number}{path}: {leaf.device}, inputs on {devices_before[0]}")
            )
        left.values[f"{number} output{path}"] = _on_host(leaf)
    left.values[f"{number} input x"], left.values[f"{number} input y"] = _on_host(x), _on_host(y)
    for name, buffer in model.named_buffers():
        left.values[f"{number} buffer {name}"] = _on_host(buffer)
    for path, leaf in attributes(model):
        left.values[f"{number} attribute {path}"] = _on_host(leaf)
    for name, weight in [*model.named_parameters(), ("input", x)]:
        left.values[f"{number} gradient of {name}"] = _on_host(weight.grad)
    if world.draws:
        left.values[f"{number} random state"] = torch.get_rng_state()


def _backward(out: Any, way: Way, world: World) -> None:
    total: Any = None
    found = [leaf for _, leaf in leaves(out) if isinstance(leaf, Tensor) and leaf.requires_grad]
    for index, tensor in enumerate(found):
        aim = world.home(torch.ones(tensor.shape, dtype=torch.double)) if way.caller == "target" else 0.0
        term = (tensor - aim).pow(2).mean() * (1 + index)
        total = term if total is None else total + term
    if total is not None:
        total.backward()


def _on_host(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().cpu().clone()


@contextmanager
def _collections_counted(left: Left) -> Iterator[None]:
    """A step calls no garbage collection of its own."""
    collect = gc.collect

    def counted(*args: Any) -> int:
        left.faults.append(("gc.collect", "called in a step"))
        return collect(*args)

    gc.collect = counted
    try:
        yield
    finally:
        gc.collect = collect
