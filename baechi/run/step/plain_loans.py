"""Lending plain arguments: as `Step.lend`, without a search for objects, and for views that are written."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from baechi.run.step.loans import Loans, version_of
from baechi.run.step.step import Step

Plain = tuple[tuple[Any, ...], dict[str, Any]]


def lend_plain(
    step: Step, values: Plain, place: str, lies_here: Callable[[torch.Tensor], bool]
) -> tuple[Plain, Loans]:
    """Bring all tensors among plain arguments to a device."""
    loans, (args, kwargs) = step.loans(place), values
    lies_here = lies_here if step.boundary is None else step.boundary.here(lies_here)
    bring = partial(_brought, step, place, lies_here, loans)
    if kwargs:
        kwargs = {key: bring(kwargs[key]) for key in kwargs}
    return (tuple(map(bring, args)), kwargs), loans


def _brought(
    step: Step, place: str, lies_here: Callable[[torch.Tensor], bool], loans: Loans, value: Any
) -> Any:
    """A plain value on the device. (A closure that calls itself would be garbage that holds tensors.)"""
    if isinstance(value, torch.Tensor):
        if lies_here(value):
            return value
        known = loans.lent.get(id(value))
        if known is not None:
            return known[1]
        copied = step.bring(value, place)
        if copied is not value:
            loans.lent[id(value)] = value, copied, version_of(copied)
        return copied
    if type(value) is tuple or type(value) is list:
        return type(value)([_brought(step, place, lies_here, loans, item) for item in value])
    return value
