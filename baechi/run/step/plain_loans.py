"""Lending plain arguments: as `Step.lend`, without a search for objects, and for views that are written."""

from collections.abc import Callable
from typing import Any

import torch

from baechi.run.step.loans import Loans
from baechi.run.step.step import Step

Plain = tuple[tuple[Any, ...], dict[str, Any]]


def lend_plain(
    step: Step, values: Plain, place: str, lies_here: Callable[[torch.Tensor], bool]
) -> tuple[Plain, Loans]:
    """Bring all tensors among plain arguments to a device.

    Args:
        step: the step.
        values: positional and keyword arguments, all plain; see `steady.arguments`.
        place: the device.
        lies_here: says whether a tensor need not be brought.

    Returns:
        The arguments on the device, and the record of copies.
    """
    loans = step.loans(place)
    lending = _Lending(step, place, step.here(lies_here), loans)
    args, kwargs = values
    if kwargs:
        kwargs = {key: lending.bring(kwargs[key]) for key in kwargs}
    return (tuple(map(lending.bring, args)), kwargs), loans


class _Lending:
    """Brings the tensors of one call. (A closure that calls itself would be garbage that holds them.)"""

    __slots__ = ("_copies", "_lies_here", "_loans", "_place", "_step")

    def __init__(
        self, step: Step, place: str, lies_here: Callable[[torch.Tensor], bool], loans: Loans
    ) -> None:
        self._step, self._place, self._lies_here, self._loans = step, place, lies_here, loans
        self._copies: dict[int, torch.Tensor] = {}

    def bring(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value if self._lies_here(value) else self._copy_of(value)
        if type(value) is tuple or type(value) is list:
            return type(value)([self.bring(item) for item in value])
        return value

    def _copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        copied = self._copies.get(id(tensor))
        if copied is None:
            copied = self._copies[id(tensor)] = self._step.bring(tensor, self._place)
            if copied is not tensor:
                self._loans.note(tensor, copied)
        return copied
