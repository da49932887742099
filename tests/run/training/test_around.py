"""Training in a thread, and inside and outside of `with cluster:` in turn."""

import threading
from dataclasses import replace

import pytest
import torch
from architectures.base import noise, seeded
from same import identical
from torch import nn

import baechi


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x))
        return out


def two() -> tuple[nn.Module, nn.Module, baechi.Cluster]:
    """The plain model, the same on two devices, and these."""
    model, cluster = seeded(Two)(), baechi.Cluster.virtual(2)
    baechi.distribute(model, noise(5, 6), cluster=cluster, device_map={"first": 0, "last": 1})
    return seeded(Two)(), model, cluster


def test_training_in_a_thread_of_ones_own() -> None:
    """A thread that has no `with` of its own runs backward; the gradients lie where the weights lie."""
    plain, model, cluster = two()
    plain(noise(5, 6)).pow(2).sum().backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    with cluster:
        thread = threading.Thread(target=lambda: model(noise(5, 6)).pow(2).sum().backward())
        thread.start()
        thread.join()
        places = [(str(w.device), str(w.grad.device)) for w in model.parameters() if w.grad is not None]
        assert places == [("cpu:0", "cpu:0")] * 2 + [("cpu:1", "cpu:1")] * 2
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert all(identical(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(
    "options", [{}, {"foreach": True}, {"fused": True}], ids=["plain", "foreach", "fused"]
)
def test_going_in_with_an_optimizer_that_stepped_outside(options: dict[str, bool]) -> None:
    """An optimizer that stepped outside goes on inside; its state lies, and counts, on the devices."""
    plain, model, cluster = two()
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.1, **options) for each in (plain, model)]  # type: ignore[arg-type]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(noise(5, 6)).pow(2).mean().backward()
        optimizer.step()

    for _ in range(2):
        step(plain, optimizers[0])
    step(model, optimizers[1])
    with cluster:
        step(model, optimizers[1])
        places = {str(state["exp_avg"].device) for state in optimizers[1].state.values()}
    assert places == {"cpu:0", "cpu:1"}
    assert all(identical(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def test_names_that_look_like_another_device() -> None:
    """Whatever devices are called, each answers as a torch device of its own."""
    sheet = baechi.Cluster.virtual(1).devices[0]
    devices = (replace(sheet, name="large"), replace(sheet, name="cpu:0"))
    model = seeded(Two)()
    where = {"first": "large", "last": "cpu:0"}
    cluster = baechi.Cluster(devices, emulated=True)
    baechi.distribute(model, noise(5, 6), cluster=cluster, device_map=where)
    with cluster:
        assert model.first.weight.device != model.last.weight.device  # type: ignore[union-attr]
        bias = model.first.bias  # type: ignore[union-attr]
        bias + torch.zeros(6, device=bias.device)  # type: ignore[operator, arg-type]
