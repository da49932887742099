"""Operators for which torch calls another kernel on a GPU than on the CPU, so that other bytes are kept.

    operator                                  on the CPU keeps              on a GPU keeps
    dropout                                   the factors, in its dtype     a mask, one byte an element
    scaled_dot_product_attention, dropout     all probabilities, twice     its output, a number a row

Both only call others, and ask on which device their input lies (`aten/src/ATen/native/Dropout.cpp`,
`native/transformers/attention.cpp`). Shapes are inferred on the CPU, so they are told here what a GPU does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from baechi.torchlib.private.modes import dispatch_mode_count
from baechi.torchlib.private.operators import composite_kernel, operators_replaced

_aten: Any = torch.ops.aten

_FUSED = (torch.float16, torch.bfloat16, torch.float32)
"""In other dtypes a GPU computes attention step by step, as the CPU does."""


@contextmanager
def kernels_of_gpus() -> Iterator[None]:
    """While this is open, tensors without values on the CPU keep for backward what they would on a GPU.

    Only where a dispatch mode watches: what other threads compute meanwhile is as ever.
    """
    with operators_replaced({"dropout": _dropout, "scaled_dot_product_attention": _attention}):
        yield


def _dropout(value: torch.Tensor, p: float, train: bool) -> Any:
    if not dispatch_mode_count() or not p or not train or not value.numel():
        return composite_kernel(_aten.dropout.default)(value, p, train)
    return torch.native_dropout(value, p, train)[0]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    fused = dispatch_mode_count() and query.dtype in _FUSED
    return composite_kernel(_aten.scaled_dot_product_attention.default)(
        query,
        key,
        value,
        attn_mask,
        0.0 if fused else dropout_p,  # the CPU's fused kernel drops nothing, and keeps what a GPU's does
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )
