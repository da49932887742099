"""Tiny twins of models: next to nothing is computed in them, so a step takes what it takes of the host."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

_WIDTH, _WORDS, _ROWS, _TOKENS = 16, 100, 4, 4


@dataclass(frozen=True)
class Twin:
    """A tiny model.

    Args:
        name: what it is called.
        build: makes it, in training mode; it returns a loss, or an output with one.
        inputs: makes a batch: by name.
        outputs: which outputs have a row for each of the batch; empty for its only one.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    outputs: str = "logits"

    def loss(self, model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The loss of a call."""
        result = model(**inputs)
        found: torch.Tensor = result if isinstance(result, torch.Tensor) else result.loss
        return found


class _Residual(nn.Module):
    """Blocks that add to their input, and a loss."""

    def __init__(self, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(blocks), head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        loss: torch.Tensor = self.head(x).mean()
        return loss


def _mlp() -> nn.Module:
    parts = (nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH))
    blocks = [nn.Sequential(*[_again(part) for part in parts]) for _ in range(10)]
    return _Residual(list(blocks), nn.Linear(_WIDTH, 1))


def _again(module: nn.Module) -> nn.Module:
    """Another one like it."""
    if isinstance(module, nn.Linear):
        return nn.Linear(module.in_features, module.out_features)
    return nn.LayerNorm(_WIDTH) if isinstance(module, nn.LayerNorm) else nn.GELU()


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(_WIDTH, 2, 2 * _WIDTH, 0.1, batch_first=True)
    stack = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return _Residual([stack], nn.Linear(_WIDTH, 1))


def _convolutions() -> nn.Module:
    blocks = [
        nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)
        )
        for _ in range(6)
    ]
    return _Residual(list(blocks), nn.Flatten())


def _rows(*shape: int) -> dict[str, torch.Tensor]:
    return {"x": torch.ones(_ROWS, *shape)}


def words(*, labels: bool = True) -> dict[str, torch.Tensor]:
    """A batch of sentences."""
    ids = torch.randint(3, _WORDS, (_ROWS, _TOKENS), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids if labels else torch.arange(_ROWS) % 2}


def pictures(size: int) -> dict[str, torch.Tensor]:
    """A batch of pictures, each with a label."""
    return {"pixel_values": torch.ones(_ROWS, 3, size, size), "labels": torch.arange(_ROWS) % 2}


def of_transformers(name: str, kind: str, inputs: Callable[[], Any], **config: Any) -> Twin:
    """A tiny model of transformers, which keeps no cache."""
    return Twin(name, partial(_of_transformers, kind, config), inputs)


def _of_transformers(kind: str, config: dict[str, Any]) -> nn.Module:
    of_kind = getattr(import_module("transformers"), kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made: nn.Module = of_kind(of_kind.config_class(**config, use_cache=False))
    return made.train()


VOCABULARY = {"vocab_size": _WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BLOCKS = {
    "hidden_size": _WIDTH, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 2 * _WIDTH
}  # fmt: skip
SENTENCES = {**VOCABULARY, **BLOCKS, "max_position_embeddings": 16}
PICTURES = {**BLOCKS, "image_size": 8, "patch_size": 4}
GPT2 = {**VOCABULARY, "n_embd": _WIDTH, "n_layer": 4, "n_head": 2, "n_positions": 16}


def small_twins() -> list[Twin]:
    """Those of modules of torch alone."""
    return [
        Twin("mlp", _mlp, partial(_rows, _WIDTH), outputs=""),
        Twin("encoder", _encoder, partial(_rows, _TOKENS, _WIDTH), outputs=""),
        Twin("convolutions", _convolutions, partial(_rows, 8, 8, 8), outputs=""),
    ]


def twins() -> list[Twin]:
    """Those by which costs are calibrated; three are of transformers, if that is installed."""
    found = small_twins()
    if find_spec("transformers") is not None:
        grouped = {"num_key_value_heads": 1, "head_dim": 8}
        found += [
            of_transformers("gpt2", "GPT2LMHeadModel", words, **GPT2),
            of_transformers(
                "bert", "BertForSequenceClassification", partial(words, labels=False), **SENTENCES
            ),
            of_transformers("llama", "LlamaForCausalLM", words, **SENTENCES, **grouped),
        ]
    return found
