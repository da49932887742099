"""Floating-point operations of operators that torch's own registry does not count.

Each takes the operator's arguments. A multiply-add counts 2.
"""

from math import log2
from typing import Any

import torch


def fourier_flops(values: Any, dims: Any, *_: Any, **__: Any) -> int:
    """Five operations for each element and each halving (Cooley and Tukey, 1965)."""
    return int(5 * values.numel() * sum([log2(max(2, values.shape[dim])) for dim in dims]))


def distance_flops(one: Any, other: Any, *_: Any, **__: Any) -> int:
    """A difference, a product and a sum for each element of each pair."""
    return int(3 * one.numel() * other.shape[-2])


def attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Two batched products: query by key, and weights by value."""
    *batch, targets, width = query.shape
    sources, depth = value.shape[-2:]
    return int(2 * torch.Size(batch).numel() * targets * sources * (width + depth))


def attention_backward_flops(_grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Five batched products where forward has two: the weights again, and four gradients."""
    return attention_flops(query, key, value) * 5 // 2


def recurrent_flops(inputs: Any, weight: Any, recurrent: Any, *_: Any, **__: Any) -> int:
    """One layer, one direction: both products at every step."""
    steps = inputs.numel() // inputs.shape[-1]
    return int(2 * steps * (weight.numel() + recurrent.numel()))


def fused_attention_flops(query: Any, *given: Any, **__: Any) -> int:
    """A self-attention layer in one kernel: both projections, and attention between them.

    Takes `_native_multi_head_attention`'s arguments, of which query, key and value are one tensor.
    """
    _key, _value, _width, _heads, qkv_weight, _qkv_bias, proj_weight, *_ = given
    return _attending_flops(query, qkv_weight, proj_weight)


def fused_encoder_layer_flops(source: Any, *given: Any, **__: Any) -> int:
    """A transformer encoder layer in one kernel: self-attention, and the two products after it.

    Takes `_transformer_encoder_layer_fwd`'s arguments.
    """
    _width, _heads, qkv_weight, _qkv_bias, proj_weight, _proj_bias, *rest = given
    first_weight, _first_bias, second_weight = rest[7:10]  # after two flags, epsilon and two norms
    rows = source.numel() // proj_weight.shape[0]
    products = 2 * rows * (first_weight.numel() + second_weight.numel())
    return _attending_flops(source, qkv_weight, proj_weight) + int(products)


def _attending_flops(source: Any, qkv_weight: Any, proj_weight: Any) -> int:
    width = proj_weight.shape[0]
    rows = source.numel() // width
    length = rows / max(source.size(0), 1)  # of a nested tensor the mean: it does not say how long a row is
    return int(2 * rows * (qkv_weight.numel() + proj_weight.numel()) + 4 * rows * length * width)
