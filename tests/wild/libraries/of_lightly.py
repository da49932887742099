"""lightly: losses of self-supervised learning, most of which compare the rows of a batch with each other."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from lightly import loss as losses
from lightly.loss import hypersphere_loss
from lightly.models import ResNetGenerator, modules
from torch import Tensor, nn

from wild.specimen import Batch, Specimen


class _TwoViews(nn.Module):
    """A small backbone and a head, and a loss of two views."""

    def __init__(self, head: Callable[[], nn.Module], loss: Callable[[], Any]) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1)),
            *(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
        self.head, self.loss = head(), loss()

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        loss: Tensor = self.loss(self.head(self.backbone(one)), self.head(self.backbone(other)))
        return loss


class _SimSiam(nn.Module):
    """Two views that predict each other, on lightly's own ResNet."""

    def __init__(self) -> None:
        super().__init__()
        resnet = ResNetGenerator("resnet-9", width=0.125)
        self.backbone = nn.Sequential(*list(resnet.children())[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.projection = modules.SimSiamProjectionHead(64, 32, 16)
        self.prediction = modules.SimSiamPredictionHead(16, 8, 16)
        self.loss = losses.NegativeCosineSimilarity()

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        z0, z1 = [self.projection(self.backbone(view)) for view in (one, other)]
        first, second = (
            self.loss(self.prediction(z0), z1.detach()),
            self.loss(self.prediction(z1), z0.detach()),
        )
        mean: Tensor = 0.5 * (first + second)
        return mean


class _Dino(nn.Module):
    """A student and a teacher, whose center is a buffer that each step moves."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = self._network(), self._network()
        self.teacher.requires_grad_(False)
        self.loss = losses.DINOLoss(output_dim=32)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        views = (one, other)
        loss: Tensor = self.loss([self.teacher(v) for v in views], [self.student(v) for v in views], epoch=1)
        return loss

    def _network(self) -> nn.Module:
        head = modules.DINOProjectionHead(16, 16, 8, 32)
        nn.utils.remove_weight_norm(head.last_layer)  # else the model cannot be copied
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), head)


class _Swav(nn.Module):
    """Prototypes, and assignments by Sinkhorn over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(192, 16))
        self.head, self.prototypes = modules.SwaVProjectionHead(16, 16, 8), modules.SwaVPrototypes(8, 12)
        self.loss = losses.SwaVLoss()

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        outputs = [
            self.prototypes(nn.functional.normalize(self.head(self.backbone(v)))) for v in (one, other)
        ]
        loss: Tensor = self.loss(outputs, [])
        return loss


def _views() -> Batch:
    return torch.rand(8, 3, 8, 8), torch.rand(8, 3, 8, 8)


_SIMCLR = functools.partial(modules.SimCLRProjectionHead, 16, 16, 8)
_BARLOW = functools.partial(modules.BarlowTwinsProjectionHead, 16, 16, 8)
_LINEAR = functools.partial(nn.Linear, 16, 8)
_PAIRS: dict[str, Callable[[], nn.Module]] = {
    "NTXentLoss": functools.partial(_TwoViews, _SIMCLR, losses.NTXentLoss),
    "NTXentLoss, memory bank": functools.partial(
        _TwoViews, _SIMCLR, lambda: losses.NTXentLoss(memory_bank_size=(32, 8))
    ),
    "DCLLoss": functools.partial(_TwoViews, _SIMCLR, losses.DCLLoss),
    "BarlowTwinsLoss": functools.partial(_TwoViews, _BARLOW, losses.BarlowTwinsLoss),
    "VICRegLoss": functools.partial(_TwoViews, _LINEAR, losses.VICRegLoss),
    "TiCoLoss": functools.partial(_TwoViews, _LINEAR, losses.TiCoLoss),
    "HypersphereLoss": functools.partial(_TwoViews, _LINEAR, hypersphere_loss.HypersphereLoss),
    "MACLLoss": functools.partial(_TwoViews, _LINEAR, losses.MACLLoss),
    "NegativeCosineSimilarity": functools.partial(_TwoViews, _LINEAR, losses.NegativeCosineSimilarity),
    "SimSiam": _SimSiam,
    "DINOLoss": _Dino,
    "SwaVLoss": _Swav,
}


def specimens() -> list[Specimen]:
    """A model for each loss."""
    return [Specimen("lightly", name, build, _views) for name, build in _PAIRS.items()]
