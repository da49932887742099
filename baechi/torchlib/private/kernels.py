"""Which kernels torch takes: how to ask, and how to set (`sdpa_kernel` and the like)."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from baechi.torchlib.private.lookup import named

_PURPOSE = "launch a layer that waited with the kernels that were chosen when it was reached"
_APART = "keep apart what microbatches choose"

Choices = tuple[tuple[Callable[[], Any], Callable[[Any], None]], ...]
"""Pairs of functions: one gets a choice, one sets it."""


def _pairs(names: Iterable[tuple[str, str]], purpose: str) -> Choices:
    pairs = [tuple(named(f"torch._C.{name}", purpose, None) for name in pair) for pair in names]
    return tuple([(ask, choose) for ask, choose in pairs if ask and choose])


def _choices() -> Choices:
    names = (
        ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
        ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
        ("_get_math_sdp_enabled", "_set_sdp_use_math"),
        ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
        ("_get_mkldnn_enabled", "_set_mkldnn_enabled"),
        ("_get_cudnn_enabled", "_set_cudnn_enabled"),
        ("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
        ("_get_float32_matmul_precision", "_set_float32_matmul_precision"),
    )
    return _pairs(names, _PURPOSE)


def _more_choices() -> Choices:
    names = (
        ("_get_sdp_priority_order", "_set_sdp_priority_order"),
        ("_get_cudnn_benchmark", "_set_cudnn_benchmark"),
    )
    precisions: Any = _pairs([("_get_fp32_precision_getter", "_set_fp32_precision_setter")], _APART)
    of = (("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))
    return (
        *_pairs(names, _APART),
        *((partial(ask, *what), partial(choose, *what)) for ask, choose in precisions for what in of),
    )


KERNEL_CHOICES = _choices()
"""How to get and set them. Choices that this torch lacks are left out."""

MORE_KERNEL_CHOICES = _more_choices()
"""Others, which code sets less often. To ask takes time, so layers that wait do without."""

_PRECISIONS = _pairs(
    [
        ("_get_cudnn_allow_tf32", "_set_cudnn_allow_tf32"),
        ("_get_float32_matmul_precision", "_set_float32_matmul_precision"),
    ],
    "look at a model in full precision",
)


@contextmanager
def full_precision() -> Iterator[None]:
    """Within this context no product and no convolution rounds what it reads (TF32 does)."""
    before = [ask() for ask, _ in _PRECISIONS]
    try:
        for (_, choose), wanted in zip(_PRECISIONS, (False, "highest"), strict=False):
            choose(wanted)
        yield
    finally:
        for (_, choose), value in zip(_PRECISIONS, before, strict=True):
            choose(value)
