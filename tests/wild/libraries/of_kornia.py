"""kornia: its losses compare the devices of what they are given."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from kornia import losses
from torch import Tensor, nn

from wild.specimen import Batch, Specimen

_LOSSES: dict[str, Callable[[], Any]] = {
    "SSIMLoss": lambda: losses.SSIMLoss(5),
    "MS_SSIMLoss": losses.MS_SSIMLoss,
    "PSNRLoss": lambda: losses.PSNRLoss(1.0),
    "CharbonnierLoss": lambda: losses.CharbonnierLoss("mean"),
    "WelschLoss": lambda: losses.WelschLoss("mean"),
}


class _Denoises(nn.Module):
    """Two convolutions and a loss of an image."""

    def __init__(self, loss: Callable[[], Any]) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.loss = loss()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        found = torch.sigmoid(self.last(torch.relu(self.first(x))))
        loss: Tensor = self.loss(found, target).mean()
        return loss


def _images() -> Batch:
    return torch.rand(4, 3, 16, 16), torch.rand(4, 3, 16, 16)


def specimens() -> list[Specimen]:
    """One model for each loss."""
    return [
        Specimen("kornia", name, functools.partial(_Denoises, loss), _images)
        for name, loss in _LOSSES.items()
    ]
