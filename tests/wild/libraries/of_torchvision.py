"""torchvision: one small model of each file, of classification, segmentation and video."""

import functools
import inspect

import torch
from torch import nn
from torchvision import models

from wild.specimen import Specimen

_IMAGES = (
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet"),
    *("inception_v3", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf"),
    *("regnet_y_400mf", "resnet18", "resnet50", "resnext50_32x4d", "shufflenet_v2_x0_5"),
    *("squeezenet1_0", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11", "vgg11_bn", "wide_resnet50_2"),
    *("segmentation.deeplabv3_mobilenet_v3_large", "segmentation.lraspp_mobilenet_v3_large"),
    *("segmentation.fcn_resnet50",),
)
_FIXED = {"vit_b_32": 224, "maxvit_t": 224, "inception_v3": 128}
"""Sides of images of models that take no smaller ones."""

_VIDEOS = ("r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v2_s", "swin3d_t")


def specimens() -> list[Specimen]:
    """Images of 64 points a side, videos of 16 frames."""
    images = [
        Specimen("torchvision", name, functools.partial(_build, name), functools.partial(_image, name))
        for name in (*_IMAGES, "vit_b_32", "maxvit_t")
    ]
    videos = [
        Specimen(
            "torchvision", name, functools.partial(_build, f"video.{name}"), functools.partial(_video, name)
        )
        for name in _VIDEOS
    ]
    return [*images, *videos, *_flows()]


def _flows() -> list[Specimen]:
    return [
        Specimen("torchvision", "raft_small", functools.partial(_build, "optical_flow.raft_small"), _pair)
    ]


def _build(name: str) -> nn.Module:
    make = functools.reduce(getattr, name.split("."), models)
    nested = {"weights_backbone": None} if name.startswith("segmentation") else {}
    if "init_weights" in inspect.signature(make).parameters:
        nested["init_weights"] = True
    return make(weights=None, **nested)


def _image(name: str) -> tuple[torch.Tensor]:
    side = _FIXED.get(name, 64)
    return (torch.randn(2, 3, side, side),)


def _video(name: str) -> tuple[torch.Tensor]:
    frames, side = (16, 224) if name == "mvit_v2_s" else (14, 64)
    return (torch.randn(1, 3, frames, side, side),)


def _pair() -> tuple[torch.Tensor, torch.Tensor, int]:
    return torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128), 2
