"""Models that are small enough to be run on the emulated cluster: the zoo, and eight of transformers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from baechi import zoo

_WORDS = 100
_TOKENS = 32
_BATCH = 4


@dataclass(frozen=True)
class Runnable:
    """A model that is made anew for each run, the same each time.

    Args:
        name: what it is called.
        build: makes it.
        inputs: makes a batch, as `profile` takes it: a tuple or a dict.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]


def runnables(*, quick: bool = False) -> Iterator[Runnable]:
    """The models.

    Args:
        quick: of the zoo the Transformer only, and of transformers BERT.

    Yields:
        One after the other; those of transformers only if it is installed.
    """
    for name, make in zoo.MODELS.items():
        if not quick or name == "transformer":
            yield Runnable(name, partial(_of_the_zoo, make, 0), partial(_of_the_zoo, make, 1))
    if find_spec("transformers") is not None:
        for name, (kind, config, inputs) in _TRANSFORMERS.items():
            if not quick or name == "bert":
                yield Runnable(name, partial(_built, kind, config), inputs)


def _of_the_zoo(make: Callable[[str], tuple[nn.Module, Any]], part: int) -> Any:
    return make("small")[part]


def _built(kind: str, config: dict[str, Any]) -> nn.Module:
    transformers: Any = import_module("transformers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        of_kind = getattr(transformers, kind)
        model: nn.Module = of_kind(of_kind.config_class(**config))
    return model


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, _WORDS, shape, generator=torch.Generator().manual_seed(1))


def _images() -> torch.Tensor:
    return torch.randn(_BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def _sentences() -> dict[str, torch.Tensor]:
    return {"input_ids": _ids(_BATCH, _TOKENS), "labels": _ids(_BATCH, _TOKENS)}


def _classified() -> dict[str, torch.Tensor]:
    return {"input_ids": _ids(_BATCH, _TOKENS), "labels": torch.arange(_BATCH) % 2}


def _captioned() -> dict[str, Any]:
    return {"input_ids": _ids(_BATCH, _TOKENS), "pixel_values": _images(), "return_loss": True}


def _pictures() -> dict[str, torch.Tensor]:
    return {"pixel_values": _images(), "labels": torch.arange(_BATCH) % 2}


_VOCABULARY = {"vocab_size": _WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BLOCKS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_SMALL = {**_VOCABULARY, **_BLOCKS, "max_position_embeddings": 64}
_GROUPED = {**_SMALL, "num_key_value_heads": 2, "head_dim": 16}
_VISION = {**_BLOCKS, "image_size": 32, "patch_size": 8}
_HALVES = {
    f"{half}_{what}": number
    for half in ("encoder", "decoder")
    for what, number in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 128))
}

_TRANSFORMERS: dict[str, tuple[str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "llama": ("LlamaForCausalLM", _GROUPED, _sentences),
    "gpt2": (
        "GPT2LMHeadModel",
        {**_VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
        _sentences,
    ),
    "bert": ("BertForSequenceClassification", _SMALL, _classified),
    "t5": (
        "T5ForConditionalGeneration",
        {**_VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0},
        _sentences,
    ),
    "bart": (
        "BartForConditionalGeneration",
        {**_VOCABULARY, **_HALVES, "d_model": 64, "max_position_embeddings": 64},
        _sentences,
    ),
    "clip": (
        "CLIPModel",
        {"text_config": _SMALL, "vision_config": _VISION, "projection_dim": 32},
        _captioned,
    ),
    "vit": ("ViTForImageClassification", _VISION, _pictures),
    "mixtral": ("MixtralForCausalLM", {**_GROUPED, "num_local_experts": 4}, _sentences),
}
