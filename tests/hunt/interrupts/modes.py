"""One small model, run in each of five ways, beside the plain one."""

import contextlib
import random
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baechi

ROWS, WIDTH, WORDS = 6, 8, 12


class Broken(Exception):
    """What goes wrong on purpose."""


@dataclass
class Trap:
    """Where something goes wrong: at which place, at the how manieth coming by.

    Attributes:
        seen: places that were passed.
        made: weak references to what layers made.
    """

    place: str = ""
    countdown: int = 0
    error: type[BaseException] = Broken
    seen: dict[str, int] = field(default_factory=dict)
    made: list["weakref.ref[Tensor]"] = field(default_factory=list)

    def at(self, place: str, made: Tensor | None = None) -> None:
        """The step has come to a place."""
        self.seen[place] = self.seen.get(place, 0) + 1
        if made is not None:
            self.made.append(weakref.ref(made))
        if place == self.place:
            self.countdown -= 1
            if self.countdown < 0:
                self.place = ""
                raise self.error(f"on purpose in {place}")


TRAP = Trap()


class Backward(torch.autograd.Function):
    """Nothing in forward; a place in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.name = name
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        TRAP.at(f"backward of {ctx.name}")
        return grads[0] * 1, None


class Part(nn.Module):
    """A layer with a place in forward and one in backward."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.weight = name, nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Backward.apply(x @ self.weight, self.name)  # type: ignore[no-untyped-call]
        TRAP.at(f"forward of {self.name}", y)
        return y


class Block(nn.Module):
    """What is compiled: two layers and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """Branches with a functional op that writes in place between them, blocks, a head, a loss if asked."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = Part("a"), Part("b"), Part("c")
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        left, right = self.a(x), self.b(x)
        left.add_(1)
        mixed = self.c(left * right)
        for block in self.blocks:
            mixed = block(mixed)
        TRAP.at("the code", mixed)
        logits: Tensor = self.head(mixed)
        return logits if labels is None else F.cross_entropy(logits, labels)


def net() -> Net:
    """The same weights each time, in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net().double()


def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """A compiler's backend that changes nothing; what it compiled is a place."""
    del inputs

    def run(*args: Any) -> Any:
        TRAP.at("compiled code")
        return graph(*args)

    return run


def data() -> tuple[Tensor, Tensor]:
    """A batch, made where it is asked for."""
    x = torch.linspace(-1, 1, ROWS * WIDTH, dtype=torch.float64).view(ROWS, WIDTH)
    TRAP.at("the data", x)
    return x, torch.arange(ROWS) * 2 % WORDS


@dataclass
class World:
    """A plain model, and one that runs in another way.

    Args:
        mode: which way.
        cluster: what it runs on.
        emulated: whether its steps are.
        model: what is called.
        weights_of: the module whose gradients count.
        inside: whether the model computes the loss.
        learns: whether there are gradients.
    """

    mode: str
    cluster: baechi.Cluster
    emulated: bool
    model: Any
    weights_of: nn.Module
    inside: bool
    learns: bool = True

    def entered(self) -> AbstractContextManager[Any]:
        """What a step runs within."""
        return self.cluster if self.emulated else contextlib.nullcontext()

    def step(self) -> list[Tensor]:
        """Zero the gradients, and take a step: the loss and the gradients, on the host."""
        with torch.set_grad_enabled(self.learns):
            return _step(self.model, self.weights_of, self.inside)

    def change(self, factor: float) -> None:
        """Multiply all weights; where there are replicas, they must follow."""
        if self.mode == "dispatched":
            with torch.no_grad():
                for weight in self.weights_of.parameters():
                    weight.mul_(factor)

    def live_bytes(self) -> dict[str, int]:
        """What devices hold; within `entered`."""
        return self.cluster.emulation.live_bytes if self.emulated else {}


def _step(model: Any, weights_of: nn.Module, inside: bool) -> list[Tensor]:
    weights_of.zero_grad()
    x, labels = data()
    loss = model(x, labels) if inside else F.cross_entropy(model(x), labels)
    TRAP.at("the loss", loss)
    if loss.requires_grad:
        loss.backward()
    grads = [weight.grad for weight in weights_of.parameters() if weight.grad is not None]
    return [tensor.detach().cpu().clone() for tensor in (loss, *grads)]


def expected() -> list[Tensor]:
    """The loss and gradients of the plain model."""
    plain = net()
    return _step(plain, plain, True)


def _distributed(mode: str, rng: random.Random, **options: Any) -> World:
    model, cluster = net(), baechi.Cluster.virtual(2, memory="1MiB")
    inputs = data()
    options = {"placer": "round-robin", "verbose": False, **options}
    baechi.distribute(model, inputs, cluster=cluster, **options)
    # within an emulated cluster blocks run as they were written
    emulated = "compile" not in options and rng.random() < 0.5
    return World(mode, cluster, emulated, model, model, True)


def _plain(mode: str, rng: random.Random) -> World:
    return _distributed(mode, rng, reorder=rng.choice((False, "host", "threads")), placer="random:4")


def _dispatched(mode: str, rng: random.Random) -> World:
    model, cluster, emulated = net(), baechi.Cluster.virtual(2, memory="1MiB"), rng.random() < 0.5
    hybrid = baechi.HybridScheduler(cluster, batch_sizes=[2, 2])
    scheduler = hybrid if emulated else baechi.RoundRobin(2, batch_size=2)
    dispatched = baechi.dispatch(model, scheduler, workers="thread", out=("cat", 0))
    return World(mode, cluster, emulated, dispatched, model, False, rng.random() < 0.5)


MODES: dict[str, Callable[[str, random.Random], World]] = {
    "plain": _plain,
    "pipelined": lambda mode, rng: _distributed(mode, rng, microbatches=3, loss_weights="rows"),
    "split": lambda mode, rng: _distributed(mode, rng, split={"head": 2, "blocks.0.up": 2}),
    "dispatched": _dispatched,
    "compiled": lambda mode, rng: _distributed(mode, rng, compile={"backend": backend}),
}
