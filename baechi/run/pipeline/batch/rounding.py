"""How far numbers may be apart that are the same but for rounding."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

_FEW_UNITS, _UNITS = 16, 64
"""Sums in another order differ by so many units in the last place; a rule may be behind the best by more."""

_CAST_INSIDE, _ROUGHLY = 1e-5, 2e-2
"""How far losses may be apart at most, where models compute with 32 bits or more, and with fewer."""

_TIMES = 8
"""How often as large as the rounding that was measured another one may be."""

_LEAST = 1e-3
"""Numbers below this are made of larger ones, mostly."""

_EXACT = 1e-10
"""In 64 bits, sums of many numbers in another order differ by less than this part."""


@dataclass(frozen=True)
class Rounding:
    """How far numbers may be apart.

    Args:
        unit: the largest unit in the last place, near 1, of what was computed.
        measured: by how much a part's number changes if each of its rows is there twice; infinite if that is
            not known.
    """

    unit: float
    measured: Callable[[], float]

    def allows(self, error: float, scale: float) -> bool:
        """Whether numbers are apart by no more than sums in another order are.

        Where they are by more, and may be since kernels round otherwise for other sizes, that is measured.
        """
        scale = max(scale, _LEAST if self.is_exact else 1.0)
        if error <= self._few * scale:
            return True
        most = 0.0 if self.is_exact else _CAST_INSIDE if self._is_fine else _ROUGHLY
        return error <= most * scale and error <= _TIMES * self.measured()

    def as_good(self, scale: float) -> float:
        """By how much a number may be further off than another, and be as near."""
        return (_EXACT if self.is_exact else _UNITS * self.unit) * max(scale, _LEAST)

    def same(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two tensors of one shape, on the host, are the same."""
        if not (one.is_floating_point() or one.is_complex()):
            return torch.equal(one, other)
        finite = one[one.isfinite()]
        near = 4 * self._few * (float(finite.abs().max()) if finite.numel() else 1.0)
        return torch.allclose(one, other, rtol=0, atol=near, equal_nan=True)

    @property
    def is_exact(self) -> bool:
        """Whether all was computed in 64 bits."""
        return self.unit <= torch.finfo(torch.float64).eps

    @property
    def _is_fine(self) -> bool:
        return self.unit <= torch.finfo(torch.float32).eps

    @property
    def _few(self) -> float:
        if self.is_exact:
            return _EXACT
        return _FEW_UNITS * self.unit if self._is_fine else _ROUGHLY / 10
