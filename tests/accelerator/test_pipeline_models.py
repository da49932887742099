"""Pipelines of models with a difficulty each, on devices that torch keeps apart, in every order.

Work is queued and runs late, in a random order, and the numbers are those of the whole batch; or every access
is checked against vector clocks, and nothing is unordered.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from matrix import pairs_by_tier
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, seeded
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import baechi
from accelerator import NAMES, ToyMachine

from .devices import FIRST, cluster, on_host, there
from .where import moved

pytestmark = pytest.mark.default_cases(1)


class Masked(nn.Module):
    """A stack makes its masks in its own code, where no layer and no functional op is."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.stack = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.arange(x.shape[1], device=x.device) >= x.shape[1] - 2
        made: Tensor = self.stack(x, src_key_padding_mask=padding.expand(x.shape[:2]))
        return made.square().mean()


class Queries(nn.Module):
    """A weight's view, which all microbatches read on another device."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 8)
        self.first, self.attend, self.last = nn.Linear(8, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.embedding.weight.unsqueeze(1).expand(-1, x.shape[0], -1)
        seen = self.first(x).transpose(0, 1)
        return self.last(self.attend(queries, seen, seen)[0] + queries).square().mean()


class Torn(nn.Module):
    """Checkpointed blocks that lie over the devices: the backward of each stage runs them again."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        made = self.first(x)
        for block in self.blocks:
            made = made + checkpoint(block, made, use_reentrant=self.reentrant)
        return made.square().mean()


class Homeward(nn.Module):
    """Views of the input are read by layers on two devices; its gradient goes home."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        made = self.left(x[..., :4]).tanh() * self.right(x[..., 4:])
        return self.last(made).square().mean()


BUILDS: dict[str, Callable[[], nn.Module]] = {
    "masks of a stack": Masked,
    "a view of a weight": Queries,
    "torn checkpoints": lambda: Torn(reentrant=False),
    "reentrant ones": lambda: Torn(reentrant=True),
    "an input's gradient": Homeward,
}
ORDERS = ("gpipe", "1f1b", "interleaved", "auto")


@pytest.mark.parametrize(("name", "order", "late"), pairs_by_tier(list(BUILDS), ORDERS, [True, False]))
def test_as_the_whole_batch(toy: ToyMachine, name: str, order: Any, late: bool) -> None:
    """Two steps add up what two of the whole batch do; by clocks, nothing is unordered."""
    seed = list(BUILDS).index(name)
    toy.restart(seed=seed, late=late)
    model, x = seeded(BUILDS[name]), noise(7, 5, 8)
    plain = moved(copy.deepcopy(model), FIRST)
    devices = cluster(*NAMES[: 2 + seed % 2])
    graph = baechi.profile(model, x, cluster=devices, training=True, source="estimate", microbatches=3)
    plan = baechi.place(graph, devices, f"random:{seed}")
    baechi.distribute(model, plan=baechi.pipeline(plan, 3, order), loss_weights="rows")
    given, own = there(x).requires_grad_(), there(x).requires_grad_()
    for _ in range(2):
        loss = model(x=given)
        loss.backward()
        expected = plain(x=own)
        expected.backward()
    faults = [] if late else toy.faults()
    assert torch.allclose(loss.detach().cpu(), expected.detach().cpu(), rtol=1e-12)
    assert given.grad is not None and own.grad is not None
    torch.testing.assert_close(given.grad.cpu(), own.grad.cpu(), rtol=1e-10, atol=1e-14)
    assert_same_gradients(on_host(model), on_host(plain))
    assert faults == []
