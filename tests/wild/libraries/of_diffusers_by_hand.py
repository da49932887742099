"""diffusers: some of its models in sizes of our own, for where its testers are not at hand."""

from collections.abc import Callable
from typing import Any

import diffusers
import torch
from torch import nn

from wild.specimen import Batch, Specimen

_UNET: dict[str, Any] = {
    **{"sample_size": 8, "in_channels": 4, "out_channels": 4, "layers_per_block": 1},
    **{"block_out_channels": (8, 16), "norm_num_groups": 4},
}
_CROSS: dict[str, Any] = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "cross_attention_dim": 8,
    "attention_head_dim": 4,
}
_VAE: dict[str, Any] = {
    **{"in_channels": 3, "out_channels": 3, "latent_channels": 4, "block_out_channels": (8, 8)},
    **{"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
    **{"layers_per_block": 1, "norm_num_groups": 4},
}
_TRANSFORMER: dict[str, Any] = {
    **{"sample_size": 8, "patch_size": 2, "in_channels": 4, "num_layers": 2},
    **{"attention_head_dim": 8, "num_attention_heads": 2},
}
_UP: Any = ("CrossAttnUpBlock2D", "UpBlock2D")


def _steps() -> torch.Tensor:
    return torch.randint(0, 1000, (4,))


def _noisy(channels: int = 4) -> dict[str, Any]:
    return {"sample": torch.randn(4, channels, 8, 8), "timestep": _steps()}


def _conditioned() -> Batch:
    return {**_noisy(), "encoder_hidden_states": torch.randn(4, 5, 8)}


def _one_step() -> Batch:
    return {**_conditioned(), "timestep": 7}


def _image() -> Batch:
    return (torch.randn(4, 3, 16, 16),)


def _with_pooled() -> Batch:
    return {
        **{"hidden_states": torch.randn(4, 4, 8, 8), "encoder_hidden_states": torch.randn(4, 5, 8)},
        **{"pooled_projections": torch.randn(4, 8), "timestep": _steps()},
    }


def _ids() -> Batch:
    return {
        **{"hidden_states": torch.randn(4, 16, 4), "encoder_hidden_states": torch.randn(4, 5, 8)},
        **{"pooled_projections": torch.randn(4, 8), "timestep": torch.rand(4)},
        **{"img_ids": torch.randint(0, 4, (16, 3)), "txt_ids": torch.zeros(5, 3)},
    }


_ROWS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "UNet2D": (
        lambda: diffusers.UNet2DModel(
            **_UNET,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=4,
        ),
        _noisy,
    ),
    "UNet2DCondition": (
        lambda: diffusers.UNet2DConditionModel(**_UNET, **_CROSS, up_block_types=_UP),
        _conditioned,
    ),
    "UNet2DCondition, one timestep": (
        lambda: diffusers.UNet2DConditionModel(**_UNET, **_CROSS, up_block_types=_UP),
        _one_step,
    ),
    "ControlNet": (
        lambda: diffusers.ControlNetModel(
            **{name: value for name, value in _UNET.items() if name not in ("sample_size", "out_channels")},
            **_CROSS,
            conditioning_embedding_out_channels=(4, 8),
        ),
        lambda: {**_conditioned(), "controlnet_cond": torch.rand(4, 3, 16, 16)},
    ),
    "UNet1D": (
        lambda: diffusers.UNet1DModel(
            sample_size=16, in_channels=2, out_channels=2, block_out_channels=(32, 32), layers_per_block=1,
            down_block_types=("DownBlock1DNoSkip", "DownBlock1D"), extra_in_channels=64,
            up_block_types=("UpBlock1D", "UpBlock1DNoSkip"),
        ),
        lambda: {"sample": torch.randn(4, 2, 16), "timestep": _steps()},
    ),
    "AutoencoderKL": (lambda: diffusers.AutoencoderKL(**_VAE), _image),
    "AutoencoderKL, samples": (
        lambda: diffusers.AutoencoderKL(**_VAE),
        lambda: {"sample": torch.randn(4, 3, 16, 16), "sample_posterior": True},
    ),
    "AutoencoderTiny": (
        lambda: diffusers.AutoencoderTiny(
            encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8),
            num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1), latent_channels=4,
        ),
        _image,
    ),
    "VQModel": (lambda: diffusers.VQModel(**_VAE, num_vq_embeddings=8), _image),
    "DiTTransformer2D": (
        lambda: diffusers.DiTTransformer2DModel(**_TRANSFORMER, num_embeds_ada_norm=1000, norm_num_groups=4),
        lambda: {
            "hidden_states": torch.randn(4, 4, 8, 8),
            "timestep": _steps(),
            "class_labels": torch.randint(0, 9, (4,)),
        },
    ),
    "SD3Transformer2D": (
        lambda: diffusers.SD3Transformer2DModel(
            **_TRANSFORMER, joint_attention_dim=8, caption_projection_dim=16, pooled_projection_dim=8,
            out_channels=4, pos_embed_max_size=8,
        ),
        _with_pooled,
    ),
    "FluxTransformer2D": (
        lambda: diffusers.FluxTransformer2DModel(
            patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
            num_attention_heads=2, joint_attention_dim=8, pooled_projection_dim=8, axes_dims_rope=(4, 4, 8),
        ),
        _ids,
    ),
}  # fmt: skip


def specimens() -> list[Specimen]:
    """U-Nets, autoencoders and transformers."""
    return [Specimen("diffusers", name, build, inputs) for name, (build, inputs) in _ROWS.items()]
