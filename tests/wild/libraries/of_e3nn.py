"""e3nn: equivariant layers. Their `Irreps` are tuples whose `__len__` raises."""

import torch
from e3nn import nn as e3nn
from e3nn import o3
from torch import Tensor, nn

from wild.specimen import Specimen


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


def specimens() -> list[Specimen]:
    """All that are tried."""
    vector, scalars = lambda: (torch.randn(8, 10),), lambda: (torch.randn(8, 4),)
    return [
        Specimen("e3nn", "tensor product", _Product, vector),
        Specimen("e3nn", "FullyConnectedNet", lambda: e3nn.FullyConnectedNet([4, 8, 2], torch.tanh), scalars),
    ]
