"""segmentation-models-pytorch: its decoders on small encoders."""

import functools
from itertools import product

import segmentation_models_pytorch as smp
import torch
from torch import nn

from wild.specimen import Specimen

_DECODERS = ("Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "PAN", "DeepLabV3", "DeepLabV3Plus")
_ENCODERS = ("resnet18", "mobilenet_v2")
_OTHERS = (
    *(("Unet", "mit_b0"), ("FPN", "efficientnet-b0"), ("Segformer", "mit_b0"), ("UPerNet", "resnet18")),
    *(("Unet", "mobileone_s0"), ("Unet", "tu-mobilenetv3_small_100"), ("FPN", "densenet121")),
    *(("Linknet", "vgg11"), ("DPT", "tu-vit_tiny_patch16_224")),
)

_SIDES = {"DPT": 224, "PAN": 128}
"""Sides of images of decoders that take no others."""


def specimens() -> list[Specimen]:
    """Every decoder on two encoders, and some other pairs."""
    pairs = [*product(_DECODERS, _ENCODERS), *_OTHERS]
    return [
        Specimen(
            "segmentation-models-pytorch",
            f"{decoder} {encoder}",
            functools.partial(_build, decoder, encoder),
            functools.partial(_images, _SIDES.get(decoder, 64)),
        )
        for decoder, encoder in pairs
    ]


def _build(decoder: str, encoder: str) -> nn.Module:
    return smp.create_model(decoder, encoder_name=encoder, encoder_weights=None, classes=2)


def _images(side: int) -> tuple[torch.Tensor]:
    return (torch.randn(2, 3, side, side),)
