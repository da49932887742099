"""The rule for `nn.MultiheadAttention`: by heads.

in_proj_weight   q 0  q 1 | k 0  k 1 | v 0  v 1      a shard has its heads of queries, keys and values
out_proj.weight  columns 0 | columns 1               and the columns that take them: outputs are added
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from baechi.split.dimension import Given, ShardRange, SplitDimension, SplitRule

Weight = torch.Tensor | None


class _Asked(NamedTuple):
    """The arguments of `nn.MultiheadAttention.forward`, in its order."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    key_padding_mask: torch.Tensor | None = None
    need_weights: bool = True
    attn_mask: torch.Tensor | None = None
    average_attn_weights: bool = True
    is_causal: bool = False


def attention(
    options: Mapping[str, Any],
    dimension: str,
    shard: ShardRange,
    given: Given,
    joint: tuple[torch.Tensor, ...] | None,
    query_weight: Any,
    key_weight: Any,
    value_weight: Any,
    biases: tuple[Weight, ...] | None,
    out_weight: torch.Tensor,
    out_bias: Weight,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A shard of a `MultiheadAttention`: what its heads add to the output, and to the weights' average."""
    del dimension
    asked = _Asked(*given.args, **given.kwargs)
    heads, batched = shard.stop - shard.start, asked.query.dim() == 3
    of_inputs = zip(
        (asked.query, asked.key, asked.value),
        joint or (query_weight, key_weight, value_weight),
        biases or (None, None, None),
        strict=True,
    )
    first = options["batch_first"]
    query, key, value = [
        F.linear(_batch_first(x, first), weight, bias).unflatten(-1, (heads, -1)).transpose(1, 2)
        for x, weight, bias in of_inputs
    ]
    hidden, weights = _attended(asked, shard, query, key, value)
    made = F.linear(hidden.transpose(1, 2).flatten(2), out_weight, out_bias)
    if not batched:
        return made.squeeze(0), None if weights is None else weights.squeeze(0)
    return made if first else made.transpose(0, 1), weights


def _batch_first(x: torch.Tensor, is_so: bool) -> torch.Tensor:
    if x.dim() == 2:
        return x.unsqueeze(0)
    return x if is_so else x.transpose(0, 1)


def _attended(
    asked: _Asked, shard: ShardRange, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The heads' values, and their part of the weights; these are None if they are not asked for."""
    mask = None
    if asked.attn_mask is not None:
        mask = _additive(asked.attn_mask, query.dtype)
        if mask.dim() == 3:  # of each batch and head
            mask = mask.unflatten(0, (-1, shard.size))[:, shard.start : shard.stop]
    if asked.key_padding_mask is not None:
        length = asked.key_padding_mask.shape[-1]
        padding = _additive(asked.key_padding_mask, query.dtype).reshape(-1, 1, 1, length)
        mask = padding if mask is None else mask + padding
    elif asked.is_causal and not asked.need_weights:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True), None
    if not asked.need_weights:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask), None
    scores = query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1)
    weights = (scores if mask is None else scores + mask).softmax(-1)
    if asked.average_attn_weights:
        return weights @ value, weights.sum(1) / shard.size
    beside = (0, 0, 0, 0, shard.start, shard.size - shard.stop)  # zeros for heads of other shards
    return weights @ value, F.pad(weights, beside)


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)


def _refuses(layer: Any) -> str:
    if layer.dropout:
        return (
            f"its dropout of {layer.dropout} draws numbers for all heads at once: set its `dropout` to "
            "0.0, or leave it out of split="
        )
    return "shards do not do what add_zero_attn=True asks for" if layer.add_zero_attn else ""


RULES = {
    "torch.nn.modules.activation.MultiheadAttention": SplitRule(
        {
            "heads": SplitDimension(
                {
                    "in_proj_weight": 0,
                    "q_proj_weight": 0,
                    "k_proj_weight": 0,
                    "v_proj_weight": 0,
                    "in_proj_bias": 0,
                    "out_proj.weight": 1,
                },
                "sum",
                length="num_heads",
                values={"in_proj_weight": 3, "in_proj_bias": 3},
            )
        },
        ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias",
         "out_proj.weight", "out_proj.bias"),
        attention,
        ("batch_first", "dropout"),
        _refuses,
        takes_all=True,
    ),
}  # fmt: skip
"""By the full name of a class."""
