"""Functions with a backward of their own: reversible blocks, saved inputs, checkpointed regions."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import baechi

pytestmark = pytest.mark.default_cases(2)


class Freed(torch.autograd.Function):
    """Frees its input in forward; backward computes it again from the output, into the same object."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Any, *weights: Tensor) -> Tensor:
        ctx.block, ctx.weights, ctx.x = block, weights, x
        with torch.no_grad():
            y = ctx.y = block.there(x).detach_()
        x.untyped_storage().resize_(0)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            x = ctx.block.back(ctx.y)
            ctx.y.untyped_storage().resize_(0)
            ctx.x.set_(x)
        with torch.enable_grad():
            x = ctx.x.detach().requires_grad_()
            grads = torch.autograd.grad(ctx.block.there(x), (x, *ctx.weights), grad)
        return grads[0], None, *grads[1:]


class Reversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def there(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        left = left + self.one(right).tanh()
        return torch.cat([left, right + self.two(left).tanh()], 1)

    def back(self, y: Tensor) -> Tensor:
        left, right = y.chunk(2, 1)
        right = right - self.two(left).tanh()
        return torch.cat([left - self.one(right).tanh(), right], 1)

    def forward(self, x: Tensor) -> Any:
        return Freed.apply(x, self, *self.parameters())


class RevNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 8), nn.Linear(8, 8)
        self.blocks = nn.ModuleList([Reversible() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.leave(x)
        return out


class Gated(torch.autograd.Function):
    """Keeps an input that the caller handed in, and computes with it in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor) -> Tensor:
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, gate = ctx.saved_tensors
        return grad * gate, grad * x


class KeepsInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(Gated.apply(self.one(x), x))
        return out


class Checkpointed(nn.Module):
    """A region that begins with glue, on an input which needs no gradient, and that drops units."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.enter, self.inside, self.drop = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.5)

    def region(self, x: Tensor, index: Tensor) -> Tensor:
        out: Tensor = self.drop(self.inside(x.index_select(0, index)))
        return out

    def forward(self, x: Tensor) -> Tensor:
        index = torch.arange(x.shape[0]).flip(0)
        h = self.enter(x)
        again = checkpoint(self.region, h, index, use_reentrant=self.reentrant)
        host: Tensor = checkpoint(self.region, x * 2, index, use_reentrant=self.reentrant)
        return h + again + host


MODELS: dict[str, Callable[[], nn.Module]] = {
    "reversible": RevNet,
    "keeps inputs": KeepsInputs,
    "reentrant": lambda: Checkpointed(True),
    "checkpointed": lambda: Checkpointed(False),
}


@pytest.fixture(scope="module")
def few_objects() -> Iterator[None]:
    """Reversible functions refer to themselves through autograd, so captures collect garbage in vain."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("name", MODELS)  # it changes first, and so is met by the default tier
@pytest.mark.parametrize("inside", [True, False], ids=["emulated", "outside"])
@pytest.mark.parametrize("reorder", [False, "host", "threads"])
def test_gradients_are_those_of_one_device(name: str, reorder: Any, inside: bool) -> None:
    build = seeded(lambda: MODELS[name]().double())
    x, cluster = noise(3, 8).double(), baechi.Cluster.virtual(3)
    graph = baechi.profile(build(), x, cluster=cluster)
    for placer in ("random:1", "random:2", "m-etf"):
        plain, model = build(), build()
        baechi.assign(model, baechi.place(graph, cluster, placer), reorder=reorder)
        expected, found = (
            gradients(one, x, cluster if two else None) for one, two in ((plain, False), (model, inside))
        )
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            assert torch.allclose(value, found[key], rtol=1e-9), key


def gradients(model: nn.Module, x: Tensor, cluster: Any) -> dict[str, Tensor]:
    """The output of two seeded steps, and the gradients of weights and input."""
    x = x.clone().requires_grad_()
    torch.manual_seed(3)
    with cluster or torch.enable_grad():
        for _ in range(2):
            out = model(x)
            out.sum().backward()
    assert x.grad is not None
    weights = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return {"output": out.detach(), "input": x.grad, **weights}
