"""What is taken for granted where values are not known.

numbers are finite        isnan, isinf and isfinite are answered so
arguments are valid       what torch asks only to refuse its arguments: distributions, `gaussian_nll_loss`,
                          `one_hot`
updates are scaled by 1   a number that an optimizer of torch asks for in its step: it scales what is computed
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import isinf
from typing import Any

import torch

_FINITE = {"isfinite": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}
"""By operator, its answer for each element, if all numbers are finite."""

_CHECKS = {torch.nn.functional.gaussian_nll_loss.__code__: False}
"""By function of torch that asks for a condition only to refuse its arguments, the answer for valid ones."""

_steps: ContextVar[bool] = ContextVar("_steps", default=False)
_valid: ContextVar[bool] = ContextVar("_valid", default=False)


@contextmanager
def valid_labels() -> Iterator[None]:
    """While this context is open, whole numbers are asked for only to refuse labels; 0 is a label."""
    token = _valid.set(True)
    try:
        yield
    finally:
        _valid.reset(token)


@contextmanager
def stepping(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """While this context is open, an optimizer steps."""
    token = _steps.set(type(optimizer).__module__.partition(".")[0] == "torch")
    try:
        yield
    finally:
        _steps.reset(token)


def assumed(name: str, given: list[torch.Tensor], args: Any, most_elements: int) -> Any:
    """The result of an operator that asks for what is taken for granted."""
    if name == "_is_all_true":  # torch asks so only before it raises an error
        return torch.tensor(True)
    if name == "_local_scalar_dense":
        return _number(given[0].dtype)
    answer = _answer_if_finite(name, args)
    return None if answer is None or given[0].numel() > most_elements else torch.full(given[0].shape, answer)


def _number(dtype: torch.dtype) -> float | bool | None:
    if _steps.get() and dtype.is_floating_point:
        return 1.0
    if _valid.get() and not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
        return 0
    frame = inspect.currentframe() if dtype == torch.bool else None
    while frame is not None:
        if frame.f_code in _CHECKS:
            return _CHECKS[frame.f_code]
        frame = frame.f_back
    return None


def _answer_if_finite(name: str, args: Any) -> bool | None:
    """What `isnan`, `isinf` and `isfinite` say of each element.

    Torch decomposes some of these: `isnan(x)` calls `x != x`, and `isinf` compares with infinity.
    """
    if name in ("eq", "ne"):
        if args[0] is args[1]:
            return name == "eq"
        if isinstance(args[1], float) and isinf(args[1]):
            return name == "ne"
    return _FINITE.get(name)
