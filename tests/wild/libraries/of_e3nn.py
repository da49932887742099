"""e3nn: equivariant layers. Their `Irreps` are tuples whose `__len__` raises."""

import torch
from e3nn import nn as e3nn
from e3nn import o3
from e3nn.nn.models.v2106.gate_points_networks import SimpleNetwork
from torch import Tensor, nn

from wild.specimen import Batch, Specimen


class _Product(nn.Module):
    """Two linear layers around a tensor product."""

    def __init__(self) -> None:
        super().__init__()
        irreps = o3.Irreps("4x0e+2x1o")
        self.first, self.last = o3.Linear(irreps, irreps), o3.Linear("4x0e", "2x0e")
        self.product = o3.FullyConnectedTensorProduct(irreps, irreps, "4x0e")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.product(self.first(x), x))
        return y


class _Gated(nn.Module):
    """Tensor products with spherical harmonics, and gates between them."""

    def __init__(self) -> None:
        super().__init__()
        self.harmonics = o3.Irreps.spherical_harmonics(2)
        self.gate = e3nn.Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
        self.first = o3.FullyConnectedTensorProduct("2x0e+2x1o", self.harmonics, self.gate.irreps_in)
        self.last = o3.FullyConnectedTensorProduct(self.gate.irreps_out, self.harmonics, "0e+1o")

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        y = o3.spherical_harmonics(self.harmonics, position, True, normalization="component")
        found: Tensor = self.last(self.gate(self.first(x, y)), y)
        return found


class _Normed(nn.Module):
    """An equivariant batch norm, and an activation of norms."""

    def __init__(self) -> None:
        super().__init__()
        irreps = o3.Irreps("4x0e+2x1o")
        self.first, self.norm = o3.Linear(irreps, irreps), e3nn.BatchNorm(irreps)
        self.activation, self.last = e3nn.NormActivation(irreps, torch.sigmoid), o3.Linear(irreps, "1o")

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.activation(self.norm(self.first(x))))
        return found


def _points() -> Batch:
    batch = torch.arange(12) // 3
    return ({"pos": torch.randn(12, 3), "x": torch.randn(12, 4), "batch": batch},)


def specimens() -> list[Specimen]:
    """All that are tried."""
    vector, scalars = lambda: (torch.randn(8, 10),), lambda: (torch.randn(8, 4),)
    sphere = lambda: (torch.randn(8, 9),)  # noqa: E731
    return [
        Specimen("e3nn", "tensor product", _Product, vector),
        Specimen("e3nn", "FullyConnectedNet", lambda: e3nn.FullyConnectedNet([4, 8, 2], torch.tanh), scalars),
        Specimen("e3nn", "gated network", _Gated, lambda: (torch.randn(8, 8), torch.randn(8, 3))),
        Specimen("e3nn", "norms", _Normed, vector),
        Specimen(
            "e3nn",
            "S2Activation",
            lambda: nn.Sequential(
                o3.Linear("0e+1o+2e", "0e+1o+2e"), e3nn.S2Activation("0e+1o+2e", torch.tanh, 8)
            ),
            sphere,
        ),
        Specimen(
            "e3nn",
            "SimpleNetwork",
            lambda: SimpleNetwork("4x0e", "2x0e", 2.0, 2.0, 3.0, mul=2, layers=1, lmax=1),
            _points,
        ),
    ]
