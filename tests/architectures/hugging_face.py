"""Small models of the transformers library, built from configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from .base import Architecture, seeded

Inputs = Callable[[], dict[str, Any]]

_LENGTH = 12
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BASE = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SMALL = _BASE | {"intermediate_size": 64, "max_position_embeddings": 64} | _IDS
_GROUPED = _SMALL | {"num_key_value_heads": 2}
_GPT = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64} | _IDS
_SEQ2SEQ = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
} | _IDS
_T5 = {
    "vocab_size": 99,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
} | _IDS
_VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 4,
}
_CLIP = {"text_config": _SMALL, "vision_config": _VISION, "projection_dim": 16}
_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "layer_type": "basic"}
_BACKBONE = {"model_type": "resnet", "out_features": ["stage2"]} | _RESNET
_SPEECH = {
    "conv_dim": [16, 16],
    "conv_kernel": [10, 4],
    "conv_stride": [5, 4],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
}
_LLAMA = {"model_type": "llama"} | _GROUPED
_BERT = {"model_type": "bert"} | _SMALL


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _ids(*shape: int) -> Tensor:
    """Return token ids clear of the special ones."""
    return torch.randint(3, 99, shape, generator=_generator())


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_generator())


def _text() -> dict[str, Any]:
    """Return a padded batch of sentences."""
    ids, mask = _ids(2, _LENGTH), torch.ones(2, _LENGTH, dtype=torch.long)
    ids[1, -3:] = mask[1, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _unpadded() -> dict[str, Any]:
    return {"input_ids": _ids(2, _LENGTH)}


def _language() -> dict[str, Any]:
    """Return sentences with themselves as labels."""
    ids = _ids(2, _LENGTH)
    return {"input_ids": ids, "labels": ids.clone()}


def _masked_language() -> dict[str, Any]:
    text = _text()
    return text | {"labels": text["input_ids"].masked_fill(text["attention_mask"] == 0, -100)}


def _sentences() -> dict[str, Any]:
    return _text() | {"labels": torch.tensor([0, 1])}


def _questions() -> dict[str, Any]:
    start, end = torch.tensor([1, 2]), torch.tensor([3, 5])
    return _text() | {"start_positions": start, "end_positions": end}


def _translation() -> dict[str, Any]:
    return _text() | {"labels": _ids(2, 7)}


def _paired() -> dict[str, Any]:
    return _text() | {"decoder_input_ids": _ids(2, 7)}


def _images(side: int = 16, **more: Tensor) -> Inputs:
    """Return inputs of two square images and `more` beside them."""

    def inputs() -> dict[str, Any]:
        return {"pixel_values": _noise(2, 3, side, side)} | deepcopy(more)

    return inputs


def _captioned(side: int = 16, **more: Any) -> Inputs:
    """Return inputs of two images with a sentence each and `more` beside them."""

    def inputs() -> dict[str, Any]:
        return _images(side)() | _text() | deepcopy(more)

    return inputs


def _row(name: str, model: str, inputs: Inputs, **settings: Any) -> Architecture:
    """Return the table row of the transformers class `model` under the configuration `settings`."""

    def build() -> nn.Module:
        import transformers

        architecture = getattr(transformers, model)
        module: nn.Module = architecture(architecture.config_class(**deepcopy(settings)))
        return module

    return Architecture(name, seeded(build), inputs)


_CLASSES = torch.tensor([0, 1])

HELD_IN = (
    _row("llama", "LlamaForCausalLM", _language, **_GROUPED),
    _row("gpt2", "GPT2LMHeadModel", _language, **_GPT),
    _row("bert", "BertForSequenceClassification", _sentences, **_SMALL),
    _row("t5", "T5ForConditionalGeneration", _translation, **_T5),
    _row("bart", "BartForConditionalGeneration", _translation, **_SEQ2SEQ),
    _row("clip", "CLIPModel", _captioned(return_loss=True), **_CLIP),
    _row("vit", "ViTForImageClassification", _images(labels=_CLASSES), **_VISION),
    _row(
        "mixtral",
        "MixtralForCausalLM",
        _language,
        **_GROUPED,
        num_local_experts=4,
        output_router_logits=True,
    ),
)
OTHERS = (
    _row("mistral", "MistralForCausalLM", _language, **_GROUPED, sliding_window=4),
)
