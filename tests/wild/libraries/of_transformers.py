"""transformers: the base model of every configuration, made small by the names of its entries."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModel, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES
from transformers.utils import logging

from wild.libraries.shrinking import shrunk
from wild.specimen import Batch, Choice, Specimen, first_that_runs

_LENGTH, _LAST_WORD = 12, 60
_PATCHES = 4
_MOST_WEIGHTS = 40_000_000
_MELS, _TIMES, _SAMPLES = 80, (64, 128, 3000), 4000

logging.set_verbosity_error()


def specimens() -> list[Specimen]:
    """One for each configuration that has a model."""
    kinds = [kind for kind in CONFIG_MAPPING if kind in MODEL_MAPPING_NAMES]
    return [first_that_runs("transformers", kind, functools.partial(_choices, kind)) for kind in kinds]


def _choices(kind: str) -> Iterator[Choice]:
    made = CONFIG_MAPPING[kind]
    config = made.from_dict(shrunk(made().to_dict()))
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in _build(config).parameters())
    if weights > _MOST_WEIGHTS:
        raise ValueError(f"{weights} weights: its configuration is not made small")
    for inputs in _batches(config):
        yield functools.partial(_build, config), inputs


def _build(config: PretrainedConfig) -> nn.Module:
    return AutoModel.from_config(config)


def _batches(config: PretrainedConfig) -> Iterator[Callable[[], Batch]]:
    """What the model may take: text on one side or both, images, videos, sound, series."""
    main = AutoModel._model_mapping[type(config)]
    name = (main[0] if isinstance(main, tuple) else main).main_input_name
    if name == "input_ids":
        yield lambda: {"input_ids": _words()}
        yield lambda: {"input_ids": _words(), "decoder_input_ids": _words()}
    yield functools.partial(_patches, config)
    for values in _values(config, name):
        for more in ({}, {"decoder_input_ids": _words}, {"input_ids": _words}):
            yield functools.partial(_called, name, values, more)


def _values(config: PretrainedConfig, name: str) -> Iterator[Callable[[], torch.Tensor]]:
    if name == "input_ids":
        name = "pixel_values"
    side, channels = _of(config, "image_size", 64), _of(config, "num_channels", 3)
    height, width = (side, side) if isinstance(side, int) else tuple(side)[-2:]
    frames, mels = _of(config, "num_frames", 4), _of(config, "num_mel_bins", _MELS)
    shapes: dict[str, list[tuple[int, ...]]] = {
        "pixel_values": [
            *((2, channels, *shape) for shape in ((height, width), (64, 64), (128, 128), (224, 224))),
            (1, frames, channels, height, width),
        ],
        "pixel_values_videos": [(1, frames, channels, height, width)],
        "input_values": [(2, _SAMPLES), (2, 1, _SAMPLES), (2, 1024, 128), (2, 128, mels)],
        "input_features": [shape for time in _TIMES for shape in ((1, mels, time), (1, time, mels))],
        "past_values": [(2, _of(config, "context_length", 32), _of(config, "num_input_channels", 1))],
    }
    shapes["pixel_values"] += [(2, channels, 2, height, width)]
    for shape in shapes.get(name, [(2, _LENGTH, _of(config, "hidden_size", 64))]):
        yield functools.partial(torch.randn, shape)


def _patches(config: PretrainedConfig) -> Batch:
    """An image as its patches, and how many there are in each direction."""
    channels = _of(config, "in_channels", 3) * _of(config, "temporal_patch_size", 1)
    patches = torch.randn(_PATCHES**2, channels * _of(config, "patch_size", 16) ** 2)
    return {"hidden_states": patches, "grid_thw": torch.tensor([[1, _PATCHES, _PATCHES]])}


def _called(
    name: str, values: Callable[[], torch.Tensor], more: dict[str, Callable[[], torch.Tensor]]
) -> Batch:
    batch = {key: make() for key, make in more.items()}
    return batch | {"pixel_values" if name == "input_ids" else name: values()}


def _of(config: PretrainedConfig, name: str, otherwise: Any) -> Any:
    """An entry of a configuration, or of the first one within it that has such."""
    parts = [config, *(part for part in vars(config).values() if isinstance(part, PretrainedConfig))]
    return next((getattr(part, name) for part in parts if getattr(part, name, None)), otherwise)


def _words() -> torch.Tensor:
    return torch.randint(3, _LAST_WORD, (2, _LENGTH))
