"""What training code does besides steps: mixed precision, checkpointing, accumulation, penalties."""

from typing import Any

import pytest
import torch
from run.training.towers import (
    PLACES,
    assert_equal,
    assert_trains_as_plain,
    batch,
    loss_on,
    momentum,
    spread,
    towers,
    train,
)
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import baechi


@pytest.mark.parametrize("scale", [1024.0, 2.0**127], ids=["finite", "overflowing"])
def test_autocast_and_gradient_scaling(scale: float) -> None:
    """Mixed precision with a gradient scaler, also where gradients overflow and a step is left out."""

    def run(model: nn.Module) -> float:
        optimizer, scaler = momentum(model), torch.amp.GradScaler("cpu", init_scale=scale)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_on(model, batch())
            scaler.scale(loss * 8).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale()

    assert_trains_as_plain(run)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "hooks"])
def test_checkpointing(reentrant: bool) -> None:
    """Both kinds of activation checkpointing, over branches that lie on two devices."""
    plain, model = towers(reentrant), towers(reentrant)
    cluster = spread(model)
    train(plain, batch().requires_grad_())
    with cluster:
        train(model, batch().requires_grad_())
    assert_equal(plain, model)


def test_saving_on_the_host() -> None:
    """`save_on_cpu` keeps what autograd saves on the host, and brings it back to each device."""

    def run(model: nn.Module) -> list[str]:
        with save_on_cpu():
            loss = loss_on(model, batch())
        loss.backward()
        momentum(model).step()
        return []

    assert_trains_as_plain(run)


def test_saving_on_the_host_frees_devices() -> None:
    """What `save_on_cpu` moved to the host takes no memory of a device until backward."""

    class Squares(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(4):
                x = x * x  # saves x, and nothing else
            return x.sum()

    def peak_bytes(saving: bool) -> int:
        model, cluster = Squares(), baechi.Cluster.virtual(1)
        baechi.distribute(model, torch.ones(64), cluster=cluster)
        with cluster:
            x = torch.ones(64, requires_grad=True)
            if saving:
                with save_on_cpu():
                    model(x)
            else:
                model(x)
            return baechi.last_step(model).peak_bytes["cpu:0"]

    assert peak_bytes(saving=False) == 5 * 256 + 4  # the input, four squares, the sum
    assert peak_bytes(saving=True) == 3 * 256  # the step's copy of the input, a square and its root


def test_retain_graph() -> None:
    """A second backward through the same graph adds the same gradients again."""

    def run(model: nn.Module) -> list[Any]:
        loss = loss_on(model, batch())
        loss.backward(retain_graph=True)
        loss.backward()
        momentum(model).step()
        return [weight.grad.tolist() for weight in model.parameters() if weight.grad is not None]

    assert_trains_as_plain(run)


def test_data_loader_workers() -> None:
    """Batches that worker processes make, started inside of `with`, arrive as they were made."""
    x = torch.randn(15, 6, generator=torch.Generator().manual_seed(2))

    def run(model: nn.Module) -> int:
        optimizer, batches = momentum(model), 0
        for rows, targets in DataLoader(TensorDataset(x, torch.ones(15, 3)), batch_size=5, num_workers=2):
            optimizer.zero_grad()
            F.mse_loss(model(rows), targets).backward()
            optimizer.step()
            batches += 1
        return batches

    assert_trains_as_plain(run)


def test_gradient_accumulation() -> None:
    """Gradients add up over batches, and zeroing them in place starts over."""

    def run(model: nn.Module) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(2):
            for shift in range(3):
                (loss_on(model, batch() + shift) / 3).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    assert_trains_as_plain(run)


def test_gradient_penalty() -> None:
    """Gradients of gradients run over several devices."""

    def run(model: nn.Module) -> None:
        x = batch().requires_grad_()
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (grad.pow(2).sum() + loss_on(model, batch())).backward()
        momentum(model).step()

    plain, model = towers().double(), towers().double()
    batch_before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        cluster = baechi.Cluster.virtual(3)
        baechi.distribute(model, batch(), cluster=cluster, device_map=PLACES)
        run(plain)
        with cluster:
            run(model)
    finally:
        torch.set_default_dtype(batch_before)
    assert_equal(plain, model, tolerance=1e-12)
