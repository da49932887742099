"""MONAI: networks of medical images, with few channels."""

import functools
from typing import Any

import torch
from monai.networks import nets
from torch import nn

from wild.specimen import Batch, Specimen

_PLANE = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
_STEPS: dict[str, Any] = {"channels": (4, 8, 16), "strides": (2, 2)}
_DIFFUSION: dict[str, Any] = {
    **_PLANE,
    **{"channels": (8, 8), "attention_levels": (False, True), "num_res_blocks": 1, "norm_num_groups": 4},
}
_CODER = {**_DIFFUSION, "latent_channels": 4}
_DENSE = {**_PLANE, "init_features": 8, "growth_rate": 4, "block_config": (2, 2)}


def _image(side: int = 32, channels: int = 1) -> Batch:
    return (torch.randn(2, channels, side, side),)


def _volume(side: int = 32, channels: int = 1) -> Batch:
    return (torch.randn(1, channels, side, side, side),)


def _vector(size: int = 16) -> Batch:
    return (torch.randn(2, size),)


def _noisy() -> Batch:
    return torch.randn(2, 1, 16, 16), torch.tensor([3, 7])


def _tokens() -> Batch:
    return (torch.randint(0, 32, (2, 12)),)


def _bag() -> Batch:
    return (torch.randn(2, 3, 3, 32, 32),)


def _row(make: str, inputs: Any = _image, **arguments: Any) -> tuple[str, dict[str, Any], Any]:
    return make, arguments, inputs


_ROWS = {
    "UNet": _row("UNet", **_PLANE, **_STEPS, num_res_units=2),
    "UNet, no residuals": _row("UNet", **_PLANE, **_STEPS),
    "UNet, volumes": _row("UNet", _volume, spatial_dims=3, in_channels=1, out_channels=2, **_STEPS),
    "AttentionUnet": _row("AttentionUnet", **_PLANE, **_STEPS),
    "AutoEncoder": _row("AutoEncoder", **_PLANE, channels=(4, 8), strides=(2, 2)),
    "BasicUNet": _row("BasicUNet", **_PLANE, features=(4, 4, 8, 8, 16, 4)),
    "BasicUNetPlusPlus": _row("BasicUNetPlusPlus", **_PLANE, features=(4, 4, 8, 8, 16, 4)),
    "BasicUNetPlusPlus, supervised": _row(
        "BasicUNetPlusPlus", **_PLANE, features=(4, 4, 8, 8, 16, 4), deep_supervision=True
    ),
    "DenseNet": _row("DenseNet", **_DENSE),
    "DynUNet": _row(
        "DynUNet",
        **_PLANE,
        **{"kernel_size": (3, 3, 3), "strides": (1, 2, 2), "upsample_kernel_size": (2, 2)},
        filters=(4, 8, 16),
    ),
    "DynUNet, supervised": _row(
        "DynUNet",
        **_PLANE,
        **{"kernel_size": (3, 3, 3, 3), "strides": (1, 2, 2, 2), "upsample_kernel_size": (2, 2, 2)},
        **{"filters": (4, 8, 16, 16), "deep_supervision": True, "deep_supr_num": 2},
    ),
    "EfficientNetBN": _row(
        "EfficientNetBN", model_name="efficientnet-b0", pretrained=False, spatial_dims=2, in_channels=1
    ),
    "FlexibleUNet": _row(
        "FlexibleUNet",
        functools.partial(_image, 32, 3),
        **{"in_channels": 3, "out_channels": 2, "backbone": "efficientnet-b0"},
        decoder_channels=(16, 8, 8, 4, 4),
    ),
    "FullyConnectedNet": _row(
        "FullyConnectedNet", _vector, in_channels=16, out_channels=4, hidden_channels=(8, 8), dropout=0.1
    ),
    "VarFullyConnectedNet": _row(
        "VarFullyConnectedNet",
        _vector,
        **{"in_channels": 16, "out_channels": 16, "latent_size": 4},
        **{"encode_channels": (8,), "decode_channels": (8,)},
    ),
    "VarAutoEncoder": _row(
        "VarAutoEncoder",
        spatial_dims=2,
        in_shape=(1, 32, 32),
        out_channels=1,
        latent_size=4,
        channels=(4, 8),
        strides=(2, 2),
    ),
    "Classifier": _row("Classifier", in_shape=(1, 32, 32), classes=3, channels=(4, 8), strides=(2, 2)),
    "Critic": _row("Critic", in_shape=(1, 32, 32), channels=(4, 8), strides=(2, 2)),
    "Discriminator": _row("Discriminator", in_shape=(1, 32, 32), channels=(4, 8), strides=(2, 2)),
    "Regressor": _row("Regressor", in_shape=(1, 32, 32), out_shape=(1,), channels=(4, 8), strides=(2, 2)),
    "Generator": _row(
        "Generator", _vector, latent_shape=(16,), start_shape=(4, 8, 8), channels=(4, 1), strides=(2, 2)
    ),
    "GlobalNet": _row(
        "GlobalNet", image_size=(32, 32), spatial_dims=2, in_channels=1, num_channel_initial=4, depth=2
    ),
    "LocalNet": _row(
        "LocalNet",
        **{"spatial_dims": 2, "in_channels": 1, "num_channel_initial": 4, "extract_levels": (0, 1)},
        out_kernel_initializer="kaiming_uniform",
        **{"out_channels": 2, "out_activation": None},
    ),
    "RegUNet": _row("RegUNet", spatial_dims=2, in_channels=1, num_channel_initial=4, depth=2),
    "VoxelMorphUNet": _row(
        "VoxelMorphUNet",
        functools.partial(_image, 32, 2),
        **{"spatial_dims": 2, "in_channels": 2, "unet_out_channels": 8, "final_conv_channels": (8,)},
        **{"channels": (8, 8, 8, 8, 8, 8), "final_conv_act": None},
    ),
    "HighResNet": _row("HighResNet", **_PLANE),
    "MILModel": _row("MILModel", _bag, num_classes=2, mil_mode="att", pretrained=False, backbone="resnet18"),
    "PatchDiscriminator": _row(
        "PatchDiscriminator", spatial_dims=2, channels=4, in_channels=1, num_layers_d=2
    ),
    "MultiScalePatchDiscriminator": _row(
        "MultiScalePatchDiscriminator",
        functools.partial(_image, 64),
        **{"num_d": 2, "num_layers_d": 2, "spatial_dims": 2, "channels": 4, "in_channels": 1},
    ),
    "Quicknat": _row("Quicknat", num_classes=2, num_channels=1, num_filters=8),
    "ResNet": _row(
        "ResNet",
        **{"block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [4, 8, 8, 16]},
        **{"spatial_dims": 2, "n_input_channels": 1, "num_classes": 2},
    ),
    "SEResNet50": _row("SEResNet50", _image, spatial_dims=2, in_channels=1, num_classes=2),
    "SegResNet": _row("SegResNet", **_PLANE, init_filters=8),
    "SegResNetDS": _row("SegResNetDS", **_PLANE, init_filters=8, dsdepth=2),
    "SegResNetDS2": _row("SegResNetDS2", **_PLANE, init_filters=8, dsdepth=2),
    "SegResNetVAE": _row("SegResNetVAE", **_PLANE, input_image_size=(32, 32), init_filters=8),
    "SwinUNETR": _row(
        "SwinUNETR", functools.partial(_image, 64), **_PLANE, feature_size=12, depths=(1, 1, 1, 1)
    ),
    "UNETR": _row(
        "UNETR",
        **_PLANE,
        **{"img_size": 32, "feature_size": 8, "hidden_size": 32, "mlp_dim": 64, "num_heads": 4},
    ),
    "ViT": _row(
        "ViT",
        **{"in_channels": 1, "img_size": 32, "patch_size": 8, "hidden_size": 32, "mlp_dim": 64},
        **{"num_layers": 2, "num_heads": 4, "classification": True, "spatial_dims": 2},
    ),
    "ViTAutoEnc": _row(
        "ViTAutoEnc",
        **{"in_channels": 1, "img_size": (32, 32), "patch_size": (4, 4), "hidden_size": 32, "mlp_dim": 64},
        **{"num_layers": 2, "num_heads": 4, "spatial_dims": 2},
    ),
    "MaskedAutoEncoderViT": _row(
        "MaskedAutoEncoderViT",
        **{"in_channels": 1, "img_size": 32, "patch_size": 8, "hidden_size": 32, "mlp_dim": 64},
        **{"num_layers": 2, "num_heads": 4, "decoder_hidden_size": 32, "decoder_mlp_dim": 64},
        **{"decoder_num_layers": 1, "decoder_num_heads": 4, "spatial_dims": 2},
    ),
    "VNet": _row("VNet", _image, spatial_dims=2),
    "AHNet": _row("AHNet", functools.partial(_image, 128), spatial_dims=2, upsample_mode="bilinear"),
    "DAF3D": _row("DAF3D", _volume, in_channels=1, out_channels=2),
    "MedNeXt": _row(
        "MedNeXt",
        **{"spatial_dims": 2, "init_filters": 4, "in_channels": 1, "out_channels": 2},
        **{"blocks_down": (1, 1, 1, 1), "blocks_up": (1, 1, 1, 1), "blocks_bottleneck": 1},
    ),
    "AutoencoderKL": _row("AutoencoderKL", **_CODER),
    "SPADEAutoencoderKL": _row(
        "SPADEAutoencoderKL",
        lambda: (torch.randn(2, 1, 16, 16), torch.randn(2, 3, 16, 16)),
        **_CODER,
        label_nc=3,
    ),
    "DiffusionModelUNet": _row("DiffusionModelUNet", _noisy, **_DIFFUSION, num_head_channels=8),
    "DiffusionModelUNet, conditioned": _row(
        "DiffusionModelUNet",
        lambda: {
            "x": torch.randn(2, 1, 16, 16),
            "timesteps": torch.tensor([3, 7]),
            "context": torch.randn(2, 1, 8),
        },
        **_DIFFUSION,
        **{"num_head_channels": 8, "with_conditioning": True, "cross_attention_dim": 8},
    ),
    "SPADEDiffusionModelUNet": _row(
        "SPADEDiffusionModelUNet",
        lambda: {
            "x": torch.randn(2, 1, 16, 16),
            "timesteps": torch.tensor([3, 7]),
            "seg": torch.randn(2, 3, 16, 16),
        },
        **_DIFFUSION,
        **{"num_head_channels": 8, "label_nc": 3},
    ),
    "ControlNet": _row(
        "ControlNet",
        lambda: {
            **{"x": torch.randn(2, 1, 16, 16), "timesteps": torch.tensor([3, 7])},
            "controlnet_cond": torch.randn(2, 1, 16, 16),
        },
        **{key: value for key, value in _DIFFUSION.items() if key != "out_channels"},
        **{"num_head_channels": 8, "conditioning_embedding_num_channels": (8,)},
    ),
    "VQVAE": _row(
        "VQVAE",
        **_PLANE,
        **{"channels": (8, 8), "num_res_layers": 1, "num_res_channels": (8, 8), "num_embeddings": 8},
        **{"embedding_dim": 4, "downsample_parameters": ((2, 4, 1, 1), (2, 4, 1, 1))},
        upsample_parameters=((2, 4, 1, 1, 0), (2, 4, 1, 1, 0)),
    ),
    "DecoderOnlyTransformer": _row(
        "DecoderOnlyTransformer",
        _tokens,
        **{"num_tokens": 32, "max_seq_len": 12, "attn_layers_dim": 16},
        **{"attn_layers_depth": 2, "attn_layers_heads": 2},
    ),
}
"""Constructor, its arguments, and inputs, by name."""


def specimens() -> list[Specimen]:
    """All rows."""
    return [
        Specimen("monai", name, functools.partial(_build, make, arguments), inputs)
        for name, (make, arguments, inputs) in _ROWS.items()
    ]


def _build(make: str, arguments: dict[str, Any]) -> nn.Module:
    return getattr(nets, make)(**arguments)
