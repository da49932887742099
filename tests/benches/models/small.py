"""The models of the benches: the zoo, and some of transformers, of any batch, on any device."""

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import nn

from baechi import zoo

Example = tuple[nn.Module, Any]
"""A model in training mode, and example inputs."""


class Maker(Protocol):
    """Makes a model."""

    def __call__(self, batch: int | None = None, device: str = "meta") -> Example:
        """Make it, the same each time.

        Args:
            batch: of how many examples; a usual one unless given.
            device: where model and inputs lie.
        """


def makers(*, quick: bool = False, small: bool = False) -> Iterator[tuple[str, Maker]]:
    """What there is.

    Args:
        quick: small ones of the zoo, instead.
        small: of transformers those that a CPU computes, instead of large ones.

    Yields:
        A name, and what makes the model. Those of transformers only if it is installed.
    """
    for name, build in zoo.MODELS.items():
        yield name, partial(_of_the_zoo, build, "small" if quick else "full")
    if not quick and find_spec("transformers") is not None:
        for name, make in (_COMPUTED if small else _LARGE).items():
            yield name, partial(_of_transformers, make)


def models(*, quick: bool = False) -> Iterator[tuple[str, Example]]:
    """Build one model after the other, on the `meta` device, with its usual batch.

    Args:
        quick: small ones of the zoo; else full ones, and if transformers is installed BERT, T5 and CLIP in
            their large sizes.

    Yields:
        Its name, the model and its inputs.
    """
    for name, make in makers(quick=quick):
        yield name, make()


def _of_the_zoo(build: Any, size: str, batch: int | None = None, device: str = "meta") -> Example:
    example: Example = build(size, batch, device=device)
    return example


def _of_transformers(make: Any, batch: int | None = None, device: str = "meta") -> Example:
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.default_generator.manual_seed(0)
        example: Example = make(import_module("transformers"), **({} if batch is None else {"batch": batch}))
    return example


def _bert(transformers: Any, *, batch: int = 16) -> Example:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096}
    config = transformers.BertConfig(num_hidden_layers=24, num_attention_heads=16, **sizes)
    ids = torch.zeros(batch, 256, dtype=torch.long)
    model = transformers.BertForPreTraining(config).train()
    return model, {"input_ids": ids, "labels": ids, "next_sentence_label": ids[:, 0]}


def _t5(
    transformers: Any,
    *,
    batch: int = 8,
    tokens: int = 256,
    width: int = 1024,
    layers: int = 24,
    heads: int = 16,
) -> Example:
    sizes = {"d_model": width, "d_kv": 64, "d_ff": 4 * width, "num_layers": layers, "num_heads": heads}
    config = transformers.T5Config(decoder_start_token_id=0, **sizes)
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    return transformers.T5ForConditionalGeneration(config).train(), {"input_ids": ids, "labels": ids}


def _clip(
    transformers: Any, *, batch: int = 32, patch: int = 14, widths: tuple[int, int] = (768, 1024)
) -> Example:
    text, image = (
        {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": width // 64}
        for width in widths
    )
    layers = 24 if widths[1] == 1024 else 12
    config = transformers.CLIPConfig(
        text_config={"num_hidden_layers": 12, "max_position_embeddings": 77, **text},
        vision_config={"num_hidden_layers": layers, "image_size": 224, "patch_size": patch, **image},
        projection_dim=widths[0],
    )
    ids, pixels = torch.zeros(batch, 77, dtype=torch.long), torch.zeros(batch, 3, 224, 224)
    inputs = {"input_ids": ids, "pixel_values": pixels, "return_loss": True}
    return transformers.CLIPModel(config).train(), inputs


def _gpt2(transformers: Any, *, batch: int = 8, tokens: int = 128) -> Example:
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config()).train(), {"input_ids": ids, "labels": ids}


_LARGE = {"bert-large": _bert, "t5-large": _t5, "clip-large": _clip}
_COMPUTED = {
    "t5-small": partial(_t5, tokens=128, width=512, layers=6, heads=8),
    "clip-base": partial(_clip, patch=32, widths=(512, 768)),
    "gpt2-small": _gpt2,
}
