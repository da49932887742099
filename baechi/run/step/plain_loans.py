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
        lies_here: says whether a tensor lies there.

    Returns:
        The arguments on the device, and the record of copies.
    """
    loans = Loans(step.backend, lambda view, copied: step.know(place, view, copied))
    lent: dict[int, torch.Tensor] = {}

    def bring(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if lies_here(value):
                return value
            copied = lent.get(id(value))
            if copied is None:
                copied = lent[id(value)] = step.bring(value, place)
                if copied is not value:
                    loans.note(value, copied)
            return copied
        if type(value) is tuple or type(value) is list:
            items = [bring(item) for item in value]
            return tuple(items) if type(value) is tuple else items
        return value

    args, kwargs = values
    return (
        tuple([bring(value) for value in args]),
        {key: bring(value) for key, value in kwargs.items()},
    ), loans
