"""Lending any arguments: nested ones, and views of one memory that are written."""

from typing import Any, Protocol

import torch

from baechi.backend import AbstractBackend
from baechi.run.step.aliases import common_bases, same_view
from baechi.run.step.loans import Loans, version_of
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in


class Lender(Protocol):
    """A step, as far as lending needs it."""

    backend: AbstractBackend

    def bring(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        """Bring a tensor to a device; see `Step.bring`."""

    def loans(self, place: str) -> Loans:
        """An empty record of copies; see `Step.loans`."""


def lent(step: Lender, values: tuple[Any, Any], place: str, *, writes: bool) -> tuple[tuple[Any, Any], Loans]:
    """Bring all arguments of a layer or functional op (glue) to its device."""
    loans = step.loans(place)
    bases = common_bases(tensors_in(values)) if writes else {}

    def bring(tensor: torch.Tensor) -> torch.Tensor:
        base = bases.get(id(tensor), tensor)
        copied = step.bring(base, place)
        if copied is base:
            return tensor
        known = loans.lent.get(id(tensor))
        if known is None:
            view = same_view(tensor, base, copied)
            known = loans.lent[id(tensor)] = tensor, view, version_of(view)
        return known[1]

    args, kwargs = map_tensors(bring, values, loans.note_container, loans.objects.append)
    there = step.backend.torch_device(place)
    if there is not None:  # a model written for one device passes "its" device around
        args = tuple([there if _is_device(value) else value for value in args])
        kwargs = {key: there if _is_device(value) else value for key, value in kwargs.items()}
    return (args, kwargs), loans


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type != "meta"
