"""Small models with a layer to split, beside their plain twins, in double precision."""

import copy
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

import baechi

TOLERANCE = 1e-12


class Around(nn.Module):
    """A layer between two functional ops."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x * 2 if x.is_floating_point() else x + 1)
        return made.sin()


class Tied(nn.Module):
    """A language model whose embedding and head share one weight."""

    def __init__(self, words: int = 41, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=3)
        self.middle = nn.Linear(width, width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(torch.relu(self.middle(self.embed(ids))))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def twins(build: Callable[[], nn.Module], seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """A model, and one like it."""
    torch.manual_seed(seed)
    model = build().double()
    return model, copy.deepcopy(model)


def words(*shape: int, below: int = 41) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(1))


def split_on(
    devices: int, model: nn.Module, inputs: Any, split: Mapping[str, Any], **more: Any
) -> baechi.Cluster:
    """Distribute a model over emulated devices, its shards on one after the other.

    All fits, so that nothing runs dry.
    """
    cluster = baechi.Cluster.virtual(devices, memory="1GiB")
    baechi.distribute(model, inputs, cluster=cluster, split=split, effort=0, verify=False, **more)
    return cluster


def tied_on_devices(
    devices: int = 3, reorder: bool | str = True
) -> tuple[nn.Module, nn.Module, baechi.Cluster, Any]:
    """A tied model whose weight lies on several devices, its twin, the cluster, and a batch."""
    model, plain = twins(Tied)
    plan, inputs = _tied_plan(devices)
    baechi.assign(model, plan, reorder=reorder)  # type: ignore[arg-type]
    return model, plain, plan.cluster, inputs


@cache
def _tied_plan(devices: int) -> tuple[baechi.Plan, tuple[torch.Tensor, torch.Tensor]]:
    """Planned once, since many tests begin with it."""
    model, _ = twins(Tied)
    inputs = (words(2, 5), words(2, 5))
    spec = baechi.BatchSpec({"out": -(-41 // devices)}, device_matrix=range(devices))
    split_on(devices, model, inputs, {"head": spec})
    return baechi.plan_of(model), inputs


def assert_runs_alike(model: nn.Module, plain: nn.Module, x: torch.Tensor, cluster: baechi.Cluster) -> None:
    """A step of a split model and of its twin: outputs, gradients of the input, and weights' are the same."""
    y = x.detach().clone().requires_grad_(x.requires_grad)
    with cluster:
        result = model(x)
        (result * result).sum().backward()
    expected = plain(y)
    (expected * expected).sum().backward()
    torch.testing.assert_close(result.detach().cpu(), expected.detach(), rtol=0, atol=TOLERANCE)
    if x.requires_grad:
        torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=TOLERANCE)
    assert_same(model, plain)


def assert_same(
    model: nn.Module, plain: nn.Module, *, grads: bool = True, tolerance: float = TOLERANCE
) -> None:
    """Weights, and gradients, of a split model and its twin are the same."""
    for (name, one), (_, other) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=0, atol=tolerance, msg=name)
        if grads and other.grad is not None:
            assert one.grad is not None, name
            torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=0, atol=tolerance, msg=name)
