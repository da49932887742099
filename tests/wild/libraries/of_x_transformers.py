"""x-transformers: its attention layers with one feature each, and its wrappers."""

import functools
from typing import Any

import torch
import x_transformers as x
from torch import nn

from wild.specimen import Batch, Specimen

_WORDS, _LENGTH = 64, 12
_SMALL: dict[str, Any] = {"dim": 32, "depth": 2, "heads": 2, "attn_dim_head": 16}

_FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "rmsnorm": {"use_rmsnorm": True},
    "simple-rmsnorm": {"use_simple_rmsnorm": True},
    "scalenorm": {"use_scalenorm": True},
    "adaptive-depth": {"layer_dropout": 0.2},
    "glu": {"ff_glu": True, "ff_swish": True},
    "relu-squared": {"ff_relu_squared": True},
    "no-bias": {"ff_no_bias": True},
    "post-norm": {"pre_norm": False},
    "sandwich-norm": {"sandwich_norm": True},
    "residual-gates": {"gate_residual": True},
    "residual-scale": {"scale_residual": True},
    "residual-attention": {"residual_attn": True},
    "hyper-connections": {"num_residual_streams": 2},
    "macaron": {"macaron": True},
    "sandwich-layers": {"sandwich_coef": 1},
    "rotary": {"rotary_pos_emb": True},
    "rotary-xpos": {"rotary_xpos": True},
    "alibi": {"alibi_pos_bias": True},
    "t5-bias": {"rel_pos_bias": True},
    "dynamic-bias": {"dynamic_pos_bias": True},
    "polar": {"polar_pos_emb": True},
    "shift-tokens": {"shift_tokens": 1},
    "talking-heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "head-scale": {"attn_head_scale": True},
    "sparse-topk": {"attn_sparse_topk": 4},
    "qk-norm": {"attn_qk_norm": True},
    "qk-norm-scale": {"attn_qk_norm": True, "attn_qk_norm_dim_scale": True},
    "one-kv-head": {"attn_one_kv_head": True},
    "kv-heads": {"attn_kv_heads": 1},
    "memory-kv": {"attn_num_mem_kv": 4},
    "gated-values": {"attn_gate_values": True},
    "attention-on-attention": {"attn_on_attn": True},
    "flash": {"attn_flash": True},
    "softclamp": {"attn_softclamp_logits": True},
    "value-residual": {"add_value_residual": True},
    "learned-value-residual": {"add_value_residual": True, "learned_value_residual_mix": True},
    "dropout": {"attn_dropout": 0.1, "ff_dropout": 0.1},
    "zero-init": {"zero_init_branch_output": True},
    "hybrid-norm": {"attn_qk_norm": True, "ff_glu": True, "use_rmsnorm": True, "rotary_pos_emb": True},
    "custom-layers": {"custom_layers": ("a", "f", "f", "a")},
    "weight-tied": {"weight_tie_layers": True},
    "laser": {"attn_laser": True},
    "cog-signed": {"attn_cog_signed": True},
    "selective": {"attn_selective": True},
    "forgetting": {"attn_data_dependent_alibi": True},
    "reinjected-input": {"reinject_input": True},
    "unet-skips": {"unet_skips": True},
    "dynamic-tanh": {"use_dynamic_tanh": True},
    "layerscale": {"use_layerscale": True},
    "integrated-layers": {"layers_execute_order": (0, 1, 0, 1, 2, 3)},
}
"""Arguments of a decoder, by name of the feature."""

_WRAPPED: dict[str, dict[str, Any]] = {
    "memory-tokens": {"num_memory_tokens": 4},
    "tied-embedding": {"tie_embedding": True},
    "scaled-sinusoidal": {"scaled_sinu_pos_emb": True},
    "no-positions": {"use_abs_pos_emb": False},
    "embedding-norm": {"post_emb_norm": True},
    "cls-token": {"use_cls_token": True},
    "embedding-dim": {"emb_dim": 16},
    "mixture-of-softmax": {"mixture_of_softmax": True, "num_output_heads": 1},
    "l2norm-embedding": {"l2norm_embed": True},
    "recycling": {"recycling": True, "train_max_recycle_steps": 2},
}
"""Arguments of the wrapper, by name of the feature."""


def specimens() -> list[Specimen]:
    """Decoders and encoders by feature, and the wrappers."""
    builds = {f"decoder {name}": functools.partial(_decoder, name, {}) for name in _FEATURES}
    builds |= {
        f"wrapper {name}": functools.partial(_decoder, "plain", more) for name, more in _WRAPPED.items()
    }
    found = [Specimen("x-transformers", name, build, _ids) for name, build in builds.items()]
    return [*found, *(Specimen("x-transformers", name, *row) for name, row in _OTHERS.items())]


def _decoder(feature: str, wrapper: dict[str, Any]) -> nn.Module:
    layers = x.Decoder(**_SMALL, **_FEATURES[feature])
    return x.TransformerWrapper(num_tokens=_WORDS, max_seq_len=_LENGTH, attn_layers=layers, **wrapper)


def _encoder() -> nn.Module:
    layers = x.Encoder(**_SMALL)
    return x.TransformerWrapper(num_tokens=_WORDS, max_seq_len=_LENGTH, attn_layers=layers)


def _autoregressive() -> nn.Module:
    return x.AutoregressiveWrapper(_decoder("plain", {}))


def _memories() -> nn.Module:
    layers = x.Decoder(**_SMALL, rel_pos_bias=True)
    return x.TransformerWrapper(num_tokens=_WORDS, max_seq_len=_LENGTH, max_mem_len=8, attn_layers=layers)


def _vision() -> nn.Module:
    return x.ViTransformerWrapper(image_size=32, patch_size=8, num_classes=5, attn_layers=x.Encoder(**_SMALL))


def _continuous() -> nn.Module:
    return x.ContinuousTransformerWrapper(
        dim_in=8, dim_out=4, max_seq_len=_LENGTH, attn_layers=x.Encoder(**_SMALL)
    )


def _continuous_autoregressive() -> nn.Module:
    net = x.ContinuousTransformerWrapper(
        dim_in=8, dim_out=8, max_seq_len=_LENGTH, attn_layers=x.Decoder(**_SMALL)
    )
    return x.ContinuousAutoregressiveWrapper(net)


def _translator() -> nn.Module:
    halves = {
        f"{half}_{key}": value
        for half in ("enc", "dec")
        for key, value in {"num_tokens": _WORDS, "depth": 1, "heads": 2, "max_seq_len": _LENGTH}.items()
    }
    return x.XTransformer(dim=32, tie_token_emb=True, **halves)


def _numbers() -> nn.Module:
    return x.XValTransformerWrapper(
        num_tokens=_WORDS, numerical_token_id=3, max_seq_len=_LENGTH, attn_layers=x.Decoder(**_SMALL)
    )


def _several() -> nn.Module:
    return x.MultiInputTransformerWrapper(
        num_tokens={"note": _WORDS, "pitch": _WORDS}, max_seq_len=_LENGTH, attn_layers=x.Decoder(**_SMALL)
    )


def _masked() -> nn.Module:
    layers = x.Encoder(**_SMALL)
    net = x.TransformerWrapper(num_tokens=_WORDS + 1, max_seq_len=_LENGTH, attn_layers=layers)
    return x.NonAutoregressiveWrapper(net, mask_id=_WORDS)


def _belief() -> nn.Module:
    return x.BeliefStateWrapper(_decoder("plain", {}), _decoder("plain", {}))


def _cross() -> nn.Module:
    return x.CrossAttender(**_SMALL)


def _ids() -> Batch:
    return (torch.randint(0, _WORDS, (2, _LENGTH)),)


def _features() -> Batch:
    return (torch.randn(2, _LENGTH, 8),)


def _image() -> Batch:
    return (torch.randn(2, 3, 32, 32),)


def _sentences() -> Batch:
    return torch.randint(0, _WORDS, (2, _LENGTH)), torch.randint(0, _WORDS, (2, _LENGTH))


def _valued() -> Batch:
    return torch.randint(0, _WORDS, (2, _LENGTH)), torch.randn(2, _LENGTH)


def _music() -> Batch:
    return ({name: torch.randint(0, _WORDS, (2, _LENGTH)) for name in ("note", "pitch")},)


def _context() -> Batch:
    return {"x": torch.randn(2, 6, 32), "context": torch.randn(2, _LENGTH, 32)}


_OTHERS = {
    "encoder": (_encoder, _ids),
    "autoregressive": (_autoregressive, _ids),
    "memories": (_memories, _ids),
    "vision": (_vision, _image),
    "continuous": (_continuous, _features),
    "continuous autoregressive": (_continuous_autoregressive, _features),
    "translator": (_translator, _sentences),
    "xval": (_numbers, _valued),
    "multi-input": (_several, _music),
    "non-autoregressive": (_masked, _ids),
    "belief state": (_belief, _ids),
    "cross attender": (_cross, _context),
}
