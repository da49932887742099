"""Whether what a distributed model left is what the plain one left."""

from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from same import identical
from torch import Tensor

import baechi

from .steps import Left

ROUNDING = 1e-9
"""By how much gradients may be off, relative to the largest: sums may be taken in another order."""

ROOT = Path(baechi.__file__).parent


@dataclass(frozen=True)
class Failure:
    """What is wrong.

    Args:
        kind: `"output"`, `"gradient"`, `"raises"` and so on.
        cause: of what is raised: the type, and the innermost function of baechi.
        detail: in words.
    """

    kind: str
    cause: str = ""
    detail: str = ""

    @property
    def signature(self) -> tuple[str, str]:
        """What failures of one cause have in common."""
        return self.kind, self.cause

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.cause, self.detail)))


def raised(error: BaseException) -> Failure:
    """The failure that an exception is.

    Args:
        error: the exception.
    """
    frame = ""
    for each, _ in walk_tb(error.__traceback__):
        file = Path(each.f_code.co_filename)
        if file.is_relative_to(ROOT):
            frame = f"{file.relative_to(ROOT)}:{each.f_code.co_name}"
    return Failure("raises", f"{type(error).__name__} in {frame}", str(error).split("\n")[0][:200])


def compared(expected: Left, found: Left, *, stepped: bool, split: bool = False) -> Failure | None:
    """The first difference: of values first, since other faults may follow from it.

    Args:
        expected: of the plain model.
        found: of the distributed one.
        stepped: whether an optimizer stepped between, so that values may be off by rounding.
        split: whether layers were split, whose products are taken in other sizes and added in another order.
    """
    grads = [value for key, value in expected.values.items() if " gradient " in key and value is not None]
    largest = max((float(grad.abs().max()) for grad in grads if grad.numel()), default=0.0)
    for key, value in expected.values.items():
        kind = key.split()[1].split(".")[0]
        rounding = ROUNDING * largest if kind == "gradient" else 0.0
        if split or (stepped and not key.startswith("1")):
            rounding = max(rounding, ROUNDING * _largest(value))
        if key not in found.values:
            return Failure(kind, "", f"{key} is not there")
        wrong = _difference(value, found.values[key], rounding)
        if wrong:
            return Failure(kind, "", f"{key}: {wrong}")
    for fault, where in found.faults:
        return Failure(fault, "", where)
    return None


def _largest(value: Any) -> float:
    """The largest absolute value of a tensor, at least one."""
    return max(1.0, float(value.abs().max())) if isinstance(value, Tensor) and value.numel() else 1.0


def _difference(one: Any, other: Any, rounding: float) -> str:
    """What differs between two values; empty if nothing does."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        same = type(one) is type(other) and (isinstance(one, Tensor) or one == other)
        return "" if same else f"{one!r:.60} and {other!r:.60}"
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{one.dtype} {tuple(one.shape)} and {other.dtype} {tuple(other.shape)}"
    if identical(one, other):
        return ""
    off = float((one.double() - other.double()).abs().nan_to_num(torch.inf).max())
    return f"off by {off:.3g}" if off > rounding else ""
