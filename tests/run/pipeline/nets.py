"""Small models for tests of pipelines, and how they are distributed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import baechi


class Blocks(nn.Module):
    """Four layers in a row, with a residual; the loss inside if there is a target."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        first = self.a(x)
        result = self.d(self.c(self.b(first).relu()) + first)
        return result if y is None else {"loss": (result - y).square().mean(), "result": result}


WHERE = {"a": 0, "b": 1, "c": 1, "d": 0}


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """A model in double precision; the same at each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().double().train()


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pipelined(model: nn.Module, inputs: Any, *, microbatches: int = 3, **options: Any) -> baechi.Cluster:
    """Distribute a model over two emulated devices, by hand unless said otherwise."""
    cluster = baechi.Cluster.virtual(2)
    options = {"device_map": WHERE, **options}
    baechi.distribute(model, inputs, cluster=cluster, microbatches=microbatches, **options)
    return cluster


def assert_columns(x: Tensor, columns: int) -> None:
    """An assertion about a shape."""
    assert x.shape[1] == columns


def assert_at_most(x: Tensor, bound: int) -> None:
    """An assertion as it is written: pytest makes others of those in test files."""
    assert x.max().item() <= bound
