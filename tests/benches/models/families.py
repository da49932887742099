"""Models of many families, small ones and deep ones: what capture and planning take their time with.

Each is computed in moments on a CPU: narrow, with few tokens. The deep ones have 500 to 5,000 layers,
but one of 300 with an edge for each pair of layers.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from baechi import zoo
from benches.models.small import Example

Build = Callable[[], Example]

_FEATURES = 16
_TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 99}
_GROUPED = _TEXT | {"num_key_value_heads": 2, "head_dim": 8}
_GPT = {"n_embd": 32, "n_head": 4, "vocab_size": 99}
_HALVES = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
_HALVES |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "d_model": 32}
_BART = _HALVES | {"vocab_size": 99, "max_position_embeddings": 64}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "vocab_size": 99, "decoder_start_token_id": 0}
_PATCHES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
_PATCHES |= {"image_size": 32, "patch_size": 8}
_WAVES = _PATCHES | {"conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3), "vocab_size": 99}
_WAVES |= {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}


def families(*, deep: bool, aside: bool) -> Iterator[tuple[str, Build]]:
    """What there is.

    Args:
        deep: those of 500 to 5,000 layers; else small ones.
        aside: those set aside, to be looked at when all others are fast.

    Yields:
        A name, and what builds the model, in training mode, with its inputs. Those of transformers only
        if it is installed.
    """
    own, theirs = _OWN[deep, aside], _THEIRS[deep, aside]
    for name, build in own.items():
        yield name, partial(_seeded, build)
    for name, make in theirs.items() if find_spec("transformers") is not None else ():
        yield name, partial(_seeded, make)


def _seeded(build: Build) -> Example:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model, inputs = build()
        return model.train(), inputs


class _Branches(nn.Module):
    """Chains side by side, split and added again and again."""

    def __init__(self, blocks: int, branches: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.ModuleList([_chain(depth) for _ in range(branches)]) for _ in range(blocks)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            assert isinstance(block, nn.ModuleList)
            x = torch.stack([branch(x) for branch in block]).mean(0)
        return x


class _Dense(nn.Module):
    """Each layer reads all before it."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(_FEATURES * (1 + n), _FEATURES) for n in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        known = [x]
        for layer in self.layers:
            known.append(layer(torch.cat(known, -1)))
        return known[-1]


class _Residual(nn.Module):
    """Convolutions, normalised, with additions in place around each pair."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(_convolution(), _convolution()) for _ in range(blocks)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) + x
        return x


def _chain(depth: int) -> nn.Sequential:
    layers = [nn.ReLU() if n % 2 else nn.Linear(_FEATURES, _FEATURES) for n in range(depth)]
    return nn.Sequential(*layers)


def _convolution() -> nn.Sequential:
    layer = nn.Conv2d(_FEATURES, _FEATURES, 3, padding=1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(_FEATURES), nn.ReLU(inplace=True))


def _own(model: Callable[..., nn.Module], *sizes: int, shape: tuple[int, ...] = (2, _FEATURES)) -> Example:
    return model(*sizes), torch.ones(shape)


def _zoo(name: str) -> Example:
    example: Example = zoo.MODELS[name]("small", None, device="cpu")
    return example


def _model(kind: str, inputs: dict[str, Any], config: dict[str, Any], head: str = "") -> Example:
    """A model of transformers: of a type, with or without a head."""
    transformers: Any = import_module("transformers")
    made = transformers.AutoConfig.for_model(kind, **config)
    return getattr(transformers, f"AutoModel{head}").from_config(made), inputs


def _text(kind: str, config: dict[str, Any]) -> Example:
    ids = torch.ones(2, 12, dtype=torch.long)
    return _model(kind, {"input_ids": ids, "labels": ids}, config, "ForCausalLM")


def _masked(kind: str, config: dict[str, Any]) -> Example:
    ids = torch.ones(2, 12, dtype=torch.long)
    return _model(kind, {"input_ids": ids, "labels": ids}, config, "ForMaskedLM")


def _translation(kind: str, config: dict[str, Any]) -> Example:
    ids = torch.ones(2, 12, dtype=torch.long)
    return _model(kind, {"input_ids": ids, "labels": ids}, config, "ForSeq2SeqLM")


def _images(kind: str, config: dict[str, Any], side: int = 32) -> Example:
    return _model(kind, {"pixel_values": torch.ones(2, 3, side, side)}, config)


def _waves(kind: str, config: dict[str, Any]) -> Example:
    return _model(kind, {"input_values": torch.ones(2, 800)}, config)


def _both(kind: str, config: dict[str, Any]) -> Example:
    ids, pixels = torch.ones(2, 12, dtype=torch.long), torch.ones(2, 3, 32, 32)
    return _model(kind, {"input_ids": ids, "pixel_values": pixels, "return_loss": True}, config)


def _spoken(kind: str, config: dict[str, Any]) -> Example:
    inputs = {"input_features": torch.ones(2, 8, 24), "labels": torch.ones(2, 7, dtype=torch.long)}
    return _model(kind, inputs, config, "ForSpeechSeq2Seq")


def _clip(layers: int) -> dict[str, Any]:
    text = _TEXT | {"num_hidden_layers": layers, "max_position_embeddings": 64, "eos_token_id": 1}
    vision = _PATCHES | {"num_hidden_layers": layers}
    return {"text_config": text, "vision_config": vision, "projection_dim": 32}


def _experts(layers: int) -> dict[str, Any]:
    return _GROUPED | {"num_hidden_layers": layers, "num_local_experts": 4, "num_experts_per_tok": 2}


def _halves(layers: int, base: dict[str, Any]) -> dict[str, Any]:
    return base | {"encoder_layers": layers, "decoder_layers": layers}


def _whisper(layers: int) -> dict[str, Any]:
    sizes = {"num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 16, "vocab_size": 99}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return _halves(layers, _HALVES | sizes | tokens)


def _swin(*depths: int) -> dict[str, Any]:
    heads = [2 for _ in depths]
    return {"embed_dim": 16, "depths": depths, "num_heads": heads, "image_size": 32, "patch_size": 2} | {
        "window_size": 4
    }


_OWN: dict[tuple[bool, bool], dict[str, Build]] = {
    (False, False): {"inception-v3": partial(_zoo, "inception-v3"), "gnmt": partial(_zoo, "gnmt")},
    (False, True): {
        "transformer": partial(_zoo, "transformer"),
        "branches": partial(_own, _Branches, 4, 3, 5),
    },
    (True, False): {
        "chain": partial(_own, _chain, 4000),
        "branches": partial(_own, _Branches, 50, 4, 9),
    },
    (True, True): {
        "dense": partial(_own, _Dense, 150),
        "residual": partial(_own, _Residual, 120, shape=(2, _FEATURES, 4, 4)),
    },
}
_THEIRS: dict[tuple[bool, bool], dict[str, Build]] = {
    (False, False): {
        "gpt2": partial(_text, "gpt2", _GPT | {"n_layer": 2}),
        "bert": partial(_masked, "bert", _TEXT | {"num_hidden_layers": 2}),
        "t5": partial(_translation, "t5", _T5 | {"num_layers": 2}),
        "vit": partial(_images, "vit", _PATCHES | {"num_hidden_layers": 2}),
        "mixtral": partial(_text, "mixtral", _experts(2)),
        "wav2vec2": partial(_waves, "wav2vec2", _WAVES | {"num_hidden_layers": 2}),
    },
    (False, True): {
        "llama": partial(_text, "llama", _GROUPED | {"num_hidden_layers": 2}),
        "clip": partial(_both, "clip", _clip(2)),
        "bart": partial(_translation, "bart", _halves(2, _BART)),
        "whisper": partial(_spoken, "whisper", _whisper(2)),
        "swin": partial(_images, "swin", _swin(2, 2)),
        "mamba": partial(_text, "mamba", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99}),
    },
    (True, False): {
        "llama": partial(_text, "llama", _GROUPED | {"num_hidden_layers": 96}),
        "bert": partial(_masked, "bert", _TEXT | {"num_hidden_layers": 64}),
        "whisper": partial(_spoken, "whisper", _whisper(32)),
        "swin": partial(_images, "swin", _swin(6, 48)),
    },
    (True, True): {
        "gpt2": partial(_text, "gpt2", _GPT | {"n_layer": 64}),
        "t5": partial(_translation, "t5", _T5 | {"num_layers": 48}),
        "mixtral": partial(_text, "mixtral", _experts(80)),
        "clip": partial(_both, "clip", _clip(48)),
    },
}
