"""The rule for tables of words whose rows are multiplied by a number, as models of transformers have them.

MBartScaledWordEmbedding       super().forward(ids) * self.embed_scale                    a number
Gemma3TextScaledWordEmbedding  super().forward(ids) * self.embed_scale.to(weight.dtype)   a buffer
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from baechi.split.dimension import ShardRange
from baechi.split.rules.layers import EMBEDDING, embedding, embedding_refuses


def scaled_embedding(
    options: Mapping[str, Any], dimension: str, shard: ShardRange, indices: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """A shard of such a table."""
    rows, scale = embedding(options, dimension, shard, indices, weight), options["scale"]
    return rows * (torch.tensor(scale, dtype=rows.dtype) if options["is_rounded"] else scale)


def _scale(layer: Any) -> dict[str, Any]:
    """The number, and whether it is rounded to the precision of the weight; none if the layer has no such."""
    scale: Any = getattr(layer, "embed_scale", None)
    is_rounded = isinstance(scale, torch.Tensor)
    if is_rounded and scale.is_meta:  # transformers keeps the number, too
        scale = torch.tensor(getattr(layer, "scalar_embed_scale", torch.nan), dtype=scale.dtype)
    if is_rounded and scale.numel() == 1:
        scale = float(scale)
    return {"scale": scale, "is_rounded": is_rounded} if isinstance(scale, (int, float)) else {}


def _refuses(layer: Any) -> str:
    """Why not: as of any table; or its code does something else with a small weight."""
    refused = embedding_refuses(layer)
    if not refused and not _only_scales(layer, {"padding_idx": None, **_scale(layer)}):
        refused = (
            "its code does more than to multiply rows by embed_scale (baechi.register_split adds a rule)"
        )
    return refused


def _only_scales(layer: Any, options: Mapping[str, Any]) -> bool:
    """Whether its code does with a small weight what a shard does."""
    if "scale" not in options:
        return False
    weight = torch.arange(1.0, 7.0, dtype=layer.weight.dtype, device="cpu").view(3, 2) / 7
    ids = torch.tensor([[2, 0, 1]], device="cpu")
    others: dict[int, Any] = {id(layer.weight): nn.Parameter(weight, requires_grad=False)}
    if options["is_rounded"]:
        others[id(layer.embed_scale)] = torch.tensor(options["scale"], dtype=weight.dtype, device="cpu")
    small = copy.deepcopy(layer, others)  # with these in place of its own
    small.padding_idx = None
    try:
        made = type(layer).forward(small, ids)
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError):  # it takes something else
        return False
    expected = scaled_embedding(options, "dim", ShardRange(0, 2, 2), ids, weight)
    return isinstance(made, torch.Tensor) and torch.equal(made, expected)


FAMILIES = {
    "ScaledWordEmbedding": replace(EMBEDDING, compute=scaled_embedding, refuses=_refuses, notes=_scale)
}
"""By the ending of names of classes that a library has for each of its models. A class with a rule of its own
keeps that; a layer whose code is another one is refused."""
