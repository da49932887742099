"""open_clip: two towers in small sizes, alone and with the losses over all pairs of a batch."""

import functools
from collections.abc import Callable
from typing import Any

import open_clip
import torch
from open_clip import loss as losses
from torch import Tensor, nn

from wild.specimen import Batch, Specimen

_VISION = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
_RESNET = {"image_size": 32, "layers": (1, 1, 1, 1), "width": 8, "head_width": 16}
_TEXT = {"context_length": 12, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2}
_DECODER = {"context_length": 12, "vocab_size": 64, "width": 32, "heads": 2, "layers": 2, "mlp_ratio": 2}


class _WithLoss(nn.Module):
    """A model and its loss."""

    def __init__(self, model: Callable[[], nn.Module], loss: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.model, self.loss = model(), loss()

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        found = self.model(image, text)
        loss: Tensor = self.loss(**found) if isinstance(found, dict) else self.loss(*found)
        return loss


def _clip(vision: dict[str, Any] = _VISION, **more: Any) -> nn.Module:
    return open_clip.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=_TEXT, **more)


def _coca() -> nn.Module:
    text = {**_TEXT, "embed_cls": True, "output_tokens": True}
    vision = {**_VISION, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
    return open_clip.CoCa(embed_dim=32, multimodal_cfg=_DECODER, text_cfg=text, vision_cfg=vision)


def _pairs() -> Batch:
    text = torch.randint(1, 60, (4, 12))
    text[:, -1] = 63
    return torch.rand(4, 3, 32, 32), text


_MODELS: dict[str, Callable[[], nn.Module]] = {
    "CLIP": _clip,
    "CLIP, ResNet": lambda: _clip(_RESNET),
    "CLIP, dict": lambda: _clip(output_dict=True),
    "CustomTextCLIP": lambda: open_clip.CustomTextCLIP(16, _VISION, _TEXT, init_logit_bias=-10.0),
    "CLIP, ClipLoss": functools.partial(_WithLoss, _clip, losses.ClipLoss),
    "CLIP, SigLipLoss": functools.partial(_WithLoss, lambda: _clip(init_logit_bias=-1.0), losses.SigLipLoss),
    "CoCa": _coca,
}


def specimens() -> list[Specimen]:
    """Models by kind of tower and loss."""
    return [Specimen("open_clip_torch", name, build, _pairs) for name, build in _MODELS.items()]
