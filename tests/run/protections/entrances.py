"""Ways into torch, and hooks."""

from collections.abc import Iterable
from typing import Any

import torch
from run.protections.models import Shift, shifts
from run.protections.rows import ERROR, FORCED, NUMBERS, none_of, nothing, row
from run.protections.scenarios import scenario
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from baechi.run.guards import entrances
from baechi.run.guards.hooked import HookWatch
from baechi.run.launch.pending import Pending
from baechi.torchlib.private.patches import CHECKPOINTED


def entrances_but(*names: str) -> tuple[Any, str, Any]:
    """Some ways into torch are not watched."""
    return entrances, "_ENTRANCES", [one for one in entrances._ENTRANCES if one[0].name not in names]


class Double(torch.autograd.Function):
    """Twice its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


def force_as_found(waits: Pending, tasks: Iterable[Any]) -> None:
    """Launches what is wanted first, then what that needs."""
    found = list(tasks)
    for task in found:
        found += [need for need in task.needs if need not in found]
    for task in found:
        waits.launcher.launch(task)


@scenario(
    row("what is forced launches in the code's order", FORCED, (Pending, "force", force_as_found)),
    layers=shifts("ab"),
    order="ba",
    launched="a b",
    forced=("mul",),
)
def chain_given_to_a_function(net: Any, x: Tensor) -> Tensor:
    a: Tensor = Double.apply(net.a(x) * 3)
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("functions take values", NUMBERS, entrances_but("apply")),
    layers=shifts("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def given_to_a_function(net: Any, x: Tensor) -> Tensor:
    a: Tensor = Double.apply(net.a(x))
    b: Tensor = net.b(x)
    return a + b


class Saves(torch.autograd.Function):
    """Computes nothing with its first input in forward, and saves it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return y * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (_,) = ctx.saved_tensors
        return None, grads[0] * 2


@scenario(
    row("functions take what waits to be written", ERROR, (entrances, "force_writers", nothing)),
    layers=shifts("abc"),
    order="cba",
    launched="c a b",
    forced=("add_",),
)
def written_and_given_to_a_function(net: Any, x: Tensor) -> Tensor:
    q, c = x * 1, net.c(x)
    with torch.no_grad():
        q.add_(net.a(x))
    saved: Tensor = Saves.apply(q, c)
    b: Tensor = net.b(x)
    return b + saved


@scenario(
    row("vmap takes values", ERROR, entrances_but("_add_batch_dim", "_process_batched_inputs")),
    layers=shifts("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def given_to_vmap(net: Any, x: Tensor) -> Tensor:
    a = torch.vmap(torch.sin)(net.a(x))
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("torch.func takes values", ERROR, entrances_but("_wrap_for_grad")),
    layers=shifts("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def given_to_grad(net: Any, x: Tensor) -> Tensor:
    a = torch.func.grad(lambda t: (t * t).sum())(net.a(x))
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("checkpointing takes values", ERROR, entrances_but(CHECKPOINTED.name)),
    layers=shifts("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def given_to_a_checkpoint(net: Any, x: Tensor) -> Tensor:
    a = checkpoint(lambda t: torch.sin(t) * t, net.a(x), use_reentrant=False)
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("hooks see real tensors", NUMBERS, (HookWatch, "_hooked", none_of)),
    layers={**shifts("ab"), "c": lambda: nn.Sequential(Shift(), Shift())},
    setup=lambda net: hook_container(net),
    devices={"c.0": 1, "c.1": 0},
    order=["b", "a"],
    launched="a c.0 c.1 b",
    forced=("a", "c.1"),
)
def hooks_on_a_container(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    c = net.c(a)
    b: Tensor = net.b(x)
    return b + c


def hook_container(net: Any) -> None:
    """Hooks that note what they see."""

    def before(module: nn.Module, args: Any) -> None:
        net.notes.append(type(args[0]).__name__)

    def after(module: nn.Module, args: Any, result: Any) -> None:
        net.notes.append(type(result).__name__)

    net.c.register_forward_pre_hook(before)
    net.c.register_forward_hook(after)
