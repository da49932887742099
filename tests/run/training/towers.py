"""Two branches that meet, over three devices, and steps of training with them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from same import identical
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import baechi


def assert_equal(one: nn.Module, other: nn.Module, *, tolerance: float = 0.0) -> None:
    """Parameters and buffers equal, bit for bit or within a tolerance."""
    for (name, a), (_, b) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        assert identical(a, b) or float((a - b).abs().max()) <= tolerance, name


class Towers(nn.Module):
    """Two branches that meet, on a device each, and a head on a third."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
        self.right = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.BatchNorm1d(8))
        self.head = nn.Linear(16, 3)
        self.reentrant = reentrant

    def branches(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.left(x), self.right(x)], dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined: torch.Tensor
        if self.reentrant is None:
            joined = self.branches(x)
        else:
            joined = checkpoint(self.branches, x, use_reentrant=self.reentrant)
        out: torch.Tensor = self.head(joined)
        return out


PLACES = {"left": "cpu:0", "right": "cpu:1", "head": "cpu:2"}


def towers(reentrant: bool | None = None) -> Towers:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Towers(reentrant)


def batch(rows: int = 5) -> torch.Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(1))


def spread(model: nn.Module, memory: str = "1MiB") -> baechi.Cluster:
    cluster = baechi.Cluster.virtual(3, memory=memory)
    baechi.distribute(model, batch(), cluster=cluster, device_map=PLACES)
    return cluster


def loss_on(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x).float(), torch.ones(len(x), 3))


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model: nn.Module, x: torch.Tensor | None = None) -> None:
    """Three steps on a batch."""
    optimizer, x = momentum(model), batch() if x is None else x
    for _ in range(3):
        optimizer.zero_grad()
        loss_on(model, x).backward()
        optimizer.step()


def assert_trains_as_plain(run: Callable[[nn.Module], Any]) -> None:
    """A way to train leaves the weights that it leaves outside, and returns the same."""
    plain, model = towers(), towers()
    expected, cluster = run(plain), spread(model)
    with cluster:
        found = run(model)
    assert found == expected
    assert_equal(plain, model)


def places_of(model: nn.Module) -> dict[str, str]:
    """Where each weight lies, as it says itself inside of `with`."""
    return {name: str(weight.device) for name, weight in model.state_dict().items()}


def planned_places(model: nn.Module) -> dict[str, str]:
    """The planned device of each weight."""
    return {name: PLACES[name.partition(".")[0]] for name in model.state_dict()}


def out_of_memory(run: Callable[[], Any]) -> baechi.DeviceMemoryError:
    """The exception, without the frames that hold tensors."""
    with pytest.raises(baechi.DeviceMemoryError) as caught:
        run()
    error: baechi.DeviceMemoryError = caught.value.with_traceback(None)
    return error
