"""Batches for models of the transformers library: seeded, the same on every call."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch

from architectures.base import noise, token_ids

Inputs = Callable[[], dict[str, Any]]

LENGTH = 12


def sentences() -> dict[str, Any]:
    """Return sentences, one of them padded."""
    ids, mask = token_ids(2, LENGTH), torch.ones(2, LENGTH, dtype=torch.long)
    ids[1, -3:] = mask[1, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def language() -> dict[str, Any]:
    """Return sentences that are their own labels."""
    return {"input_ids": token_ids(2, LENGTH), "labels": token_ids(2, LENGTH)}


def masked() -> dict[str, Any]:
    """Return sentences that are their own labels, one of them padded."""
    labelled = sentences()
    padding = labelled["attention_mask"] == 0
    return labelled | {"labels": labelled["input_ids"].masked_fill(padding, -100)}


def classified() -> dict[str, Any]:
    return sentences() | {"labels": torch.tensor([0, 1])}


def questions() -> dict[str, Any]:
    """Return sentences with the span of an answer."""
    start, end = torch.tensor([1, 2]), torch.tensor([3, 5])
    return sentences() | {"start_positions": start, "end_positions": end}


def translation() -> dict[str, Any]:
    return sentences() | {"labels": token_ids(2, 7)}


def images(side: int = 16, **more: Any) -> Inputs:
    """Return inputs of two square images and copies of `more`."""

    def inputs() -> dict[str, Any]:
        return {"pixel_values": noise(2, 3, side, side)} | deepcopy(more)

    return inputs


def captioned(**more: Any) -> Inputs:
    """Return inputs of two images with a sentence each and copies of `more`."""

    def inputs() -> dict[str, Any]:
        return images(**more)() | sentences()

    return inputs


def interleaved() -> dict[str, Any]:
    """Return sentences in which sixteen placeholders (id 3) stand for the patches of an image."""
    ids = token_ids(2, 24).clamp(min=5)
    ids[:, 1:17] = 3
    return images()() | {"input_ids": ids, "labels": ids.clone()}


def patched() -> dict[str, Any]:
    """Return sentences in which four placeholders stand for an image given as sixteen patches."""
    ids = token_ids(2, LENGTH).clamp(min=5)
    ids[:, 1:6] = torch.tensor([4, 3, 3, 3, 3])
    return {
        "input_ids": ids,
        "labels": ids.clone(),
        "mm_token_type_ids": (ids == 3).int(),
        "pixel_values": noise(32, 3 * 2 * 16),
        "image_grid_thw": torch.tensor([[1, 4, 4], [1, 4, 4]]),
    }


def spectra() -> dict[str, Any]:
    return {"input_features": noise(2, 8, 24), "labels": token_ids(2, 7)}


def waves() -> dict[str, Any]:
    return {"input_values": noise(2, 800), "labels": token_ids(2, 5)}


def spoken() -> dict[str, Any]:
    """Return sentences with the spectra of their speech and voice."""
    heard = {"decoder_input_values": noise(2, 6, 8), "labels": noise(2, 6, 8, seed=2)}
    return sentences() | heard | {"speaker_embeddings": noise(2, 8)}


def series() -> dict[str, Any]:
    """Return the past and the future of two time series."""
    return {
        "past_values": noise(2, 10).abs(),
        "past_time_features": noise(2, 10, 1),
        "past_observed_mask": torch.ones(2, 10),
        "static_categorical_features": torch.tensor([[0], [2]]),
        "future_values": noise(2, 4).abs(),
        "future_time_features": noise(2, 4, 1),
    }


def episodes() -> dict[str, Any]:
    """Return four steps of two reinforcement learning episodes."""
    return {
        "states": noise(2, 4, 5),
        "actions": noise(2, 4, 3),
        "rewards": noise(2, 4, 1),
        "returns_to_go": noise(2, 4, 1),
        "timesteps": torch.arange(4).repeat(2, 1),
        "attention_mask": torch.ones(2, 4, dtype=torch.long),
    }
