"""When parts of an output are equal: bit for bit, or but for rounding."""

from typing import Any

import torch

_TOLERANCES = {torch.float64: 1e-6, torch.complex128: 1e-6, torch.float32: 1e-2, torch.complex64: 1e-2}
_COARSE = 0.1
"""As a part of the largest value, how far kernels may be apart that compute rows alone and together (TF32,
half precision); what depends on other rows is further apart."""


def equal_values(one: Any, other: Any) -> bool:
    try:
        return bool(one == other) or (one != one and other != other)
    except (RuntimeError, ValueError, TypeError):  # it holds tensors or arrays
        return False


def same_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal bit for bit (NaN is NaN)."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one is other:
        return True
    one, other = one.detach().cpu(), other.detach().cpu()
    if one.is_floating_point() or one.is_complex():
        return bool(torch.equal(one, other)) or bool(
            torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        )
    return bool(torch.equal(one, other))


def apart(one: torch.Tensor, other: torch.Tensor, part: torch.Tensor) -> float | None:
    """How far two tensors are apart; None if that may be rounding."""
    if one.shape != other.shape or not (one.is_floating_point() or one.is_complex()) or not one.numel():
        return None
    off, largest = _largest(_wide(one) - _wide(other)), _largest(_wide(part))
    coarse = torch.is_autocast_enabled(part.device.type)
    tolerance = _COARSE if coarse else _TOLERANCES.get(part.dtype, _COARSE)
    return None if off <= tolerance * largest else off


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu()
    return tensor if tensor.is_complex() else tensor.double()


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).max())


def same_but_rounding(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if one.is_floating_point() or one.is_complex():
        return apart(one, other, other) is None
    return bool(torch.equal(one.cpu(), other.cpu()))
