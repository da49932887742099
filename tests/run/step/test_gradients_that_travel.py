"""A gradient that travels is held until it has been read."""

from typing import Any

import pytest
from architectures.base import noise, seeded
from torch import Tensor, nn

import baechi
from baechi.backend.virtual.devices import VirtualDevices


class Adds(nn.Module):
    """The gradient of a sum goes to another device, and is part of another gradient here."""

    def __init__(self) -> None:
        super().__init__()
        self.far, self.near, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.gradients: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        far, near = self.far(x), self.near(x)
        near.register_hook(lambda grad: self.gradients.append(grad.data_ptr()))
        twice = near * 2
        out: Tensor = self.last(near + far) + twice
        return out


def test_gradients_that_travel_are_not_added_to_in_place() -> None:
    """Autograd adds in place to what nobody else holds; what is sent is held until it has been read.

    It never adds where Python has looked at the storage, as emulated devices do, or under a mode: so
    this is not emulated, and in backward the devices look at nothing.
    """
    model, sent = seeded(Adds)(), []
    baechi.distribute(model, noise(3, 8), cluster=baechi.Cluster.virtual(2), device_map={"far": 1, "": 0})

    def copied(
        self: VirtualDevices, tensor: Tensor, place: str, streams: Any, *, gradient: bool = False
    ) -> Tensor:
        sent.append(tensor.data_ptr())
        return tensor.clone()

    model.gradients = []
    loss = model(noise(3, 8)).pow(2).sum()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualDevices, "copy", copied)
        patch.setattr(VirtualDevices, "place_of", lambda *_: "cpu:0")
        patch.setattr(VirtualDevices, "use", lambda *_: None)
        patch.setattr(VirtualDevices, "claim", lambda *_: None)
        loss.backward()
    added = [grad for grad in model.gradients if grad in sent]
    assert sent and not added
