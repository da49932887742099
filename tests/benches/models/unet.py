"""A U-Net as diffusion models have it, without attention."""

from itertools import pairwise

import torch
from torch import nn

_CHANNELS = (64, 128, 256, 512)


class Block(nn.Module):
    """Two convolutions that add to their input.

    Args:
        inputs: its channels.
        outputs: those of the result.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.second = nn.Sequential(
            nn.GroupNorm(8, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.beside = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, inputs, height, width) to (batch, outputs, height, width)."""
        out: torch.Tensor = self.beside(x) + self.second(self.first(x))
        return out


def _convolution(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))


class UNet(nn.Module):
    """Down through four sizes and up again; each size going up is given what it was going down."""

    def __init__(self) -> None:
        super().__init__()
        wider = list(pairwise(_CHANNELS))
        self.enter = nn.Conv2d(3, _CHANNELS[0], 3, padding=1)
        self.down = nn.ModuleList(Block(few, many) for few, many in wider)
        self.smaller = nn.ModuleList(nn.Conv2d(many, many, 3, 2, 1) for _, many in wider)
        self.middle = Block(_CHANNELS[-1], _CHANNELS[-1])
        self.larger = nn.ModuleList(nn.ConvTranspose2d(many, many, 2, 2) for _, many in reversed(wider))
        self.up = nn.ModuleList(Block(2 * many, few) for few, many in reversed(wider))
        self.leave = nn.Conv2d(_CHANNELS[0], 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 3, height, width) to the same."""
        x, skips = self.enter(x), []
        for block, smaller in zip(self.down, self.smaller, strict=True):
            x = block(x)
            skips.append(x)
            x = smaller(x)
        x = self.middle(x)
        for block, larger in zip(self.up, self.larger, strict=True):
            x = block(torch.cat([larger(x), skips.pop()], 1))
        out: torch.Tensor = self.leave(x)
        return out
