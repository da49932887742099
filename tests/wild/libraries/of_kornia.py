"""kornia: losses, which compare the devices of what they are given, operations on images, and networks."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from kornia import color, feature, filters, geometry, losses
from kornia.models.tiny_vit import TinyViT
from kornia.models.vit import VisionTransformer
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


class _Segments(nn.Module):
    """A convolution, and a loss of classes."""

    def __init__(self, loss: Callable[[], Any]) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.loss = loss()

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.loss(self.last(torch.relu(self.first(x))), labels)
        return loss


class _Warps(nn.Module):
    """A network that says how an image is to be turned, and turns it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        angle = self.head(self.features(x).flatten(1)).squeeze(1) * 30
        turned = geometry.rotate(filters.gaussian_blur2d(x, (3, 3), (1.0, 1.0)), angle)
        found: Tensor = color.rgb_to_lab(turned.clamp(0.01, 1))
        return found


def _labelled() -> Batch:
    return torch.rand(4, 3, 16, 16), torch.randint(0, 4, (4, 16, 16))


def _image(side: int, channels: int = 3) -> Callable[[], Batch]:
    return lambda: (torch.rand(4, channels, side, side),)


_CLASSES: dict[str, Callable[[], Any]] = {
    "FocalLoss": lambda: losses.FocalLoss(0.5, reduction="mean"),
    "DiceLoss": losses.DiceLoss,
    "TverskyLoss": lambda: losses.TverskyLoss(0.5, 0.5),
    "LovaszSoftmaxLoss": losses.LovaszSoftmaxLoss,
}

_NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "warp": (_Warps, _image(16)),
    "ViT": (lambda: VisionTransformer(16, 8, 3, 16, 2, 2), _image(16)),
    "HardNet": (lambda: feature.HardNet(pretrained=False), _image(32, 1)),
    "TinyViT": (
        lambda: TinyViT(
            **{"img_size": 32, "num_classes": 4, "embed_dims": (8, 8, 16, 16), "depths": (1, 1, 1, 1)},
            **{"num_heads": (1, 1, 2, 2), "window_sizes": (2, 2, 2, 2), "drop_path_rate": 0.0},
        ),
        _image(32),
    ),
}


def specimens() -> list[Specimen]:
    """One model for each loss, and networks."""
    return [
        *(
            Specimen("kornia", name, functools.partial(_Denoises, loss), _images)
            for name, loss in _LOSSES.items()
        ),
        *(
            Specimen("kornia", name, functools.partial(_Segments, loss), _labelled)
            for name, loss in _CLASSES.items()
        ),
        *(Specimen("kornia", name, build, inputs) for name, (build, inputs) in _NETWORKS.items()),
    ]
