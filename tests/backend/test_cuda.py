"""The same promises on real devices."""

import pytest
import torch
from same import assert_same, step
from torch import nn

import baechi

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.cat([self.left(x), self.right(x)], dim=1))
        return out


def test_discover() -> None:
    """The visible devices have names, memory and rates."""
    cluster = baechi.Cluster.discover()
    assert cluster.names[0] == "cuda:0" and cluster.devices[0].memory_bytes > 0


def test_one_device() -> None:
    """A model distributed onto one card lies there, and computes what it computed there before."""
    torch.manual_seed(0)
    model, plain = Towers(), Towers()
    plain.load_state_dict(model.state_dict())
    inputs = {"x": torch.randn(5, 6, device="cuda:0")}
    baechi.distribute(model, {"x": inputs["x"].cpu()}, cluster=baechi.Cluster.discover(), placer="single")
    reference = step(plain.to("cuda:0"), inputs, training=True)
    assert_same(reference, step(model, inputs, training=True))
    assert {str(p.device) for p in baechi.restore(model).parameters()} == {"cpu"}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_devices() -> None:
    """Layers on two cards, glue between them: the same numbers as on one."""
    torch.manual_seed(0)
    model, plain = Towers(), Towers()
    plain.load_state_dict(model.state_dict())
    inputs = {"x": torch.randn(5, 6, device="cuda:0")}
    baechi.distribute(model, {"x": inputs["x"].cpu()}, device_map={"left": 0, "right": 1, "head": 1})
    assert_same(step(plain.to("cuda:0"), inputs, training=True), step(model, inputs, training=True))
