"""What can be said of a model that was tried in one way."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from same import Result, identical

ROUNDING = 2e-5
"""What single precision loses where gradients are summed in another order, relative to the largest."""

ROUNDING_DOUBLE = 1e-9
"""The same in double precision."""


class Kind(StrEnum):
    """From the best to the worst; a model is as good as its worst way."""

    SAME = "same"
    ROUNDING = "up to rounding"
    PLAIN_FAILS = "plain fails"
    SLOW = "too slow"
    REFUSED = "refused"
    ERROR = "error"
    WRONG = "wrong"


@dataclass(frozen=True)
class Verdict:
    """One way's outcome.

    Args:
        kind: the outcome in a word.
        note: what differs, or the error's message.
    """

    kind: Kind
    note: str = ""


def compare(reference: Result, found: Result, rounding: float = ROUNDING) -> Verdict:
    """Outputs and buffers have to be equal bit for bit, gradients up to rounding."""
    if len(reference.outputs) != len(found.outputs):
        return Verdict(Kind.WRONG, f"{len(found.outputs)} outputs instead of {len(reference.outputs)}")
    for index, (one, other) in enumerate(zip(reference.outputs, found.outputs, strict=True)):
        if not identical(one, other):
            return Verdict(Kind.WRONG, f"output {index}{_distance(one, other)}")
    for name, buffer in reference.buffers.items():
        if not identical(buffer, found.buffers[name]):
            return Verdict(Kind.WRONG, f"buffer {name}{_distance(buffer, found.buffers[name])}")
    return _compare_gradients(reference, found, rounding)


def _compare_gradients(reference: Result, found: Result, rounding: float) -> Verdict:
    there = [grad for grad in reference.grads.values() if grad is not None and grad.numel()]
    largest = max([float(grad.abs().max()) for grad in there], default=0.0)
    kind = Kind.SAME
    for name, grad in reference.grads.items():
        other = found.grads[name]
        if (grad is None) != (other is None):
            return Verdict(Kind.WRONG, f"gradient of {name} is {'there' if grad is None else 'missing'}")
        if grad is None or other is None or identical(grad, other):
            continue
        difference = float((grad - other).abs().max())
        if not difference <= rounding * largest:  # NaN is not
            return Verdict(Kind.WRONG, f"gradient of {name} is off by {difference:.2g} of {largest:.2g}")
        kind = Kind.ROUNDING
    return Verdict(kind)


def _distance(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.shape != other.shape or one.dtype != other.dtype:
        return f" is {tuple(other.shape)} of {other.dtype}, not {tuple(one.shape)} of {one.dtype}"
    return f" is off by {float((one.double() - other.double()).abs().max()):.2g}"
