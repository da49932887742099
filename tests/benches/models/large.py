"""Models at sizes at which people use several devices, on the `meta` device, with random weights."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from baechi import zoo
from benches.models.small import Example
from benches.models.unet import UNet


def inception() -> Example:
    """Inception-v3, 64 images."""
    return zoo.MODELS["inception-v3"]("full", 64, device="meta")


def gnmt() -> Example:
    """GNMT, 128 pairs of sentences."""
    return zoo.MODELS["gnmt"]("full", 128, device="meta")


def unet() -> Example:
    """A U-Net, 64 images of 256 x 256."""
    with torch.device("meta"):
        return UNet(), (torch.zeros(64, 3, 256, 256),)


def of_transformers(make: Callable[[Any], Example]) -> Example:
    """A model of transformers.

    Args:
        make: makes it from the package.
    """
    with torch.device("meta"):
        return make(import_module("transformers"))


def gpt2_xl(transformers: Any) -> Example:
    """GPT-2 of 48 layers, 8 x 1024 words, bf16."""
    config = transformers.GPT2Config(use_cache=False, n_embd=1600, n_layer=48, n_head=25)
    return transformers.GPT2LMHeadModel(config).to(torch.bfloat16), _words(8, 1024)


def llama(transformers: Any, *, batch: int = 4) -> Example:
    """Llama of 7 billion weights, `batch` x 2048 words, bf16."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(use_cache=False))
    return model.to(torch.bfloat16), _words(batch, 2048)


def decoder(transformers: Any, *, words: int = 32_000) -> Example:
    """A Llama-like decoder of 24 blocks, 32 x 1024 words, bf16; its vocabulary may be large."""
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "vocab_size": words}
    config = transformers.LlamaConfig(use_cache=False, num_attention_heads=16, **sizes)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16), _words(32, 1024)


def t5(transformers: Any, *, batch: int = 8) -> Example:
    """T5 of 3 billion weights, `batch` x 512 words, bf16."""
    sizes = {"d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_layers": 24, "num_heads": 32}
    config = transformers.T5Config(decoder_start_token_id=0, use_cache=False, **sizes)
    return transformers.T5ForConditionalGeneration(config).to(torch.bfloat16), _words(batch, 512)


def mixtral(transformers: Any, *, batch: int = 4) -> Example:
    """A Mixtral of 16 layers, half as wide, `batch` x 1024 words, bf16."""
    sizes = {"hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 16}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(use_cache=False, **sizes, **heads))
    return model.to(torch.bfloat16), _words(batch, 1024)


def clip(transformers: Any) -> Example:
    """CLIP ViT-L/14, 64 pairs, bf16."""
    text = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
    image = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24,
        "patch_size": 14, "image_size": 224,
    }  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=768)
    ids, pixels = torch.zeros(64, 77, dtype=torch.long), torch.zeros(64, 3, 224, 224, dtype=torch.bfloat16)
    inputs = {"input_ids": ids, "pixel_values": pixels, "return_loss": True}
    return transformers.CLIPModel(config).to(torch.bfloat16), inputs


def _words(batch: int, tokens: int) -> dict[str, torch.Tensor]:
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}
