"""Ten fully convolutional nets, from one channel to a few."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

C = nn.Conv2d


class UNet(nn.Module):
    """Two levels down and up, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = C(1, 3, 3, padding=1), C(3, 4, 3, padding=1)
        self.c, self.d = C(4, 4, 3, padding=1), C(8, 3, 3, padding=1)
        self.o = C(6, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.a(x))
        b = F.relu(self.b(F.max_pool2d(a, 2)))
        c = F.relu(self.c(F.max_pool2d(b, 2)))
        b = F.relu(self.d(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1)))
        out: torch.Tensor = self.o(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1))
        return out


class Swallows(nn.Module):
    """What looks for NaN as a mark would see nothing of the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = C(1, 3, 5, padding=2), C(3, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.a(torch.nan_to_num(x))
        out: torch.Tensor = self.b(torch.where(torch.isnan(z), 0.0, z).clamp(min=-9))
        return out


class Several(nn.Module):
    """Outputs of several sizes and dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = C(1, 3, 3, padding=1), C(3, 1, 3, stride=4, padding=1)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        y = self.a(x) * scale
        return {"full": y, "quarter": self.b(y), "index": y.argmax(1, keepdim=True)}


NETS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(C(1, 4, 3, padding=1), nn.ReLU(), C(4, 1, 3, padding=1)),
    "unpadded": lambda: nn.Sequential(C(1, 4, 3), nn.ReLU(), C(4, 1, 5)),
    "strided": lambda: nn.Sequential(C(1, 4, 3, stride=2, padding=1), nn.ReLU(), C(4, 2, 3, 2, 1)),
    "dilated": lambda: nn.Sequential(C(1, 4, 3, 1, 2, 2), nn.ReLU(), C(4, 2, 3, 1, 4, 4)),
    "transposed": lambda: nn.Sequential(C(1, 4, 3, padding=1), nn.ConvTranspose2d(4, 2, 4, 2, 1)),
    "down and up": lambda: nn.Sequential(C(1, 4, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 2, 4, 2, 1)),
    "shuffled": lambda: nn.Sequential(nn.PixelUnshuffle(2), C(4, 4, 3, padding=1), nn.PixelShuffle(2)),
    "reflected": lambda: nn.Sequential(C(1, 2, 5, padding=2, padding_mode="reflect"), C(2, 1, 3, padding=1)),
    "swallows": Swallows,
    "u-net": UNet,
    "several": Several,
}


def with_small_integers(net: nn.Module) -> nn.Module:
    """Weights with which double precision adds without rounding, in whatever order."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.randint(-2, 3, weight.shape, generator=draw))
    return net.double().eval()
