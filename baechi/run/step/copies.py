"""A copy of a tensor on another device, and what tells whether it is still current."""

from dataclasses import dataclass

import torch

from baechi.backend.way import Departed
from baechi.run.step.loans import version_of
from baechi.torchlib.tensors.storage import mark_of


@dataclass(slots=True)
class Copy:
    """A copy of a tensor on another device: in transfer, or arrived, with its version on arrival.

    Args:
        tensor: the copy.
        way: what is known until it arrives; None when it has.
        version: the copy's version on arrival.
    """

    tensor: torch.Tensor
    way: Departed | None
    version: int = 0


def writes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """A key that changes when a tensor is written in place."""
    return state_of(tensor)[:2]


def state_of(tensor: torch.Tensor) -> tuple[int, int, bool]:
    """A key that changes when a copy made now would be another one.

    Of a tensor without history, code under `no_grad` and code that records read the same copy.
    """
    mark = mark_of(tensor)
    recorded = tensor.requires_grad and torch.is_grad_enabled()
    return version_of(tensor), 0 if mark is None else mark.writes, recorded
