"""What a call returns, with slots in place of its tensors: lists and tuples, nested as they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Slot:
    """In place of a tensor of a result: its position among the result's tensors."""

    index: int


class NotPlain(Exception):
    """A call whose outcome is inferred does more than to compute tensors from tensors."""


def slotted(value: Any, found: list[torch.Tensor]) -> Any:
    """A result with slots in place of tensors."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_nested:
        if value.is_conj() or value.is_neg():
            raise NotPlain("it returns a tensor whose conjugation or sign is still to be computed")
        found.append(value)
        return Slot(len(found) - 1)
    if isinstance(value, (list, tuple)):
        return _like(value, [slotted(item, found) for item in value])
    if value is None:
        return value
    raise NotPlain(f"it returns a {type(value).__name__}")


def filled(template: Any, results: Sequence[torch.Tensor]) -> Any:
    """The template with a tensor in place of each slot."""
    if isinstance(template, Slot):
        return results[template.index]
    if isinstance(template, (list, tuple)):
        return _like(template, [filled(item, results) for item in template])
    return template


def _like(value: Any, items: list[Any]) -> Any:
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
