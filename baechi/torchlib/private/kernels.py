"""Which kernels torch takes: how to ask, and how to set (`sdpa_kernel` and the like)."""

from collections.abc import Callable
from typing import Any

import torch

from baechi.torchlib.private.lookup import named

_PURPOSE = "launch a layer that waited with the kernels that were chosen when it was reached"


def _choices() -> tuple[tuple[Callable[[], Any], Callable[[Any], None]], ...]:
    names = (
        ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
        ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
        ("_get_math_sdp_enabled", "_set_sdp_use_math"),
        ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
        ("_get_mkldnn_enabled", "_set_mkldnn_enabled"),
        ("_get_cudnn_enabled", "_set_cudnn_enabled"),
        ("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
    )
    pairs = [tuple(named(f"torch._C.{name}", _PURPOSE, None) for name in pair) for pair in names]
    public = (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
    return (*((ask, choose) for ask, choose in pairs if ask and choose), public)


KERNEL_CHOICES = _choices()
"""Pairs of functions: one gets a choice, one sets it. Choices that this torch lacks are left out."""
