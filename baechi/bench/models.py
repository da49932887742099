"""The models that placements are compared on, on the `meta` device: the zoo, and three of transformers."""

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from baechi import zoo

Example = tuple[nn.Module, Any]
"""A model in training mode, and example inputs."""


def models(*, quick: bool = False) -> Iterator[tuple[str, Example]]:
    """Build one model after the other.

    Args:
        quick: small ones of the zoo; else full ones, and if transformers is installed BERT, T5 and CLIP in
            their large sizes.

    Yields:
        Its name, the model and its inputs.
    """
    for name, build in zoo.MODELS.items():
        yield name, build("small" if quick else "full", device="meta")
    if not quick and find_spec("transformers") is not None:
        for name, make in _TRANSFORMERS.items():
            with torch.device("meta"):
                yield name, make(import_module("transformers"))


def _bert(transformers: Any) -> Example:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096}
    config = transformers.BertConfig(num_hidden_layers=24, num_attention_heads=16, **sizes)
    ids = torch.zeros(16, 256, dtype=torch.long)
    model = transformers.BertForPreTraining(config).train()
    return model, {"input_ids": ids, "labels": ids, "next_sentence_label": ids[:, 0]}


def _t5(transformers: Any) -> Example:
    sizes = {"d_model": 1024, "d_kv": 64, "d_ff": 4096}
    config = transformers.T5Config(num_layers=24, num_heads=16, decoder_start_token_id=0, **sizes)
    ids = torch.zeros(8, 256, dtype=torch.long)
    return transformers.T5ForConditionalGeneration(config).train(), {"input_ids": ids, "labels": ids}


def _clip(transformers: Any) -> Example:
    text = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    image = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
    config = transformers.CLIPConfig(
        text_config={"num_hidden_layers": 12, "max_position_embeddings": 77, **text},
        vision_config={"num_hidden_layers": 24, "image_size": 224, "patch_size": 14, **image},
        projection_dim=768,
    )
    ids, pixels = torch.zeros(32, 77, dtype=torch.long), torch.zeros(32, 3, 224, 224)
    inputs = {"input_ids": ids, "pixel_values": pixels, "return_loss": True}
    return transformers.CLIPModel(config).train(), inputs


_TRANSFORMERS: dict[str, Callable[[Any], Example]] = {
    "bert-large": _bert,
    "t5-large": _t5,
    "clip-large": _clip,
}
