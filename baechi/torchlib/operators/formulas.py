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
