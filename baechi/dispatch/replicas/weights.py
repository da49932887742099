"""The master's weights at another place, brought up to date where they changed.

A change is seen by version and pointer: an optimizer's step, `load_state_dict`, a replaced Parameter. What is
written through `.data` or numpy moves no version; `stale` copies everything again.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from baechi.backend import AbstractBackend
from baechi.backend.transfer import transfer
from baechi.torchlib.private.tensors import write_count
from baechi.torchlib.tensors.storage import storage_object

Stamp = tuple[int, int, torch.Size, torch.dtype] | None


def weights_in(model: nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers, each once."""
    found: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for weight in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            found[id(weight)] = weight
    return list(found.values())


def stamp_of(tensor: torch.Tensor) -> Stamp:
    """What changes when a tensor is written; None if it counts no writes (made in inference mode)."""
    if tensor.is_inference():
        return None
    return write_count(tensor), _address(tensor), tensor.shape, tensor.dtype


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if tensor.layout == torch.strided else id(storage_object(tensor))


class Weights:
    """Copies of a model's weights at a place.

    Args:
        backend: the devices.
        place: where the copies lie.
    """

    def __init__(self, backend: AbstractBackend, place: str) -> None:
        self._backend, self._place = backend, place
        self._masters: dict[int, torch.Tensor] = {}  # held, so that no id is used again
        self._stamps: dict[int, Stamp] = {}
        self._session: object = None
        self.copies: dict[int, torch.Tensor] = {}
        """By id of the master's tensor, its copy."""

    def stale(self) -> None:
        """Copy everything again before the next call."""
        self._stamps = dict.fromkeys(self._stamps)

    def refresh(self, masters: list[torch.Tensor]) -> None:
        """Bring the copies up to date; other copies are in another dict. It may be interrupted."""
        self._count_again()
        known = self._masters.keys() == {id(master) for master in masters}
        with torch.inference_mode(False), torch.no_grad():  # in this order: the first turns gradients on
            if known and all(self._takes(master) for master in masters):
                for master in masters:
                    self._refresh_one(master)
            else:
                self._make(masters)

    def _count_again(self) -> None:
        """An emulated cluster that was opened since then counts what lies on its devices already."""
        if self._backend.session is not self._session:
            self._session = self._backend.session
            self._backend.count(self.copies.values())

    def _takes(self, master: torch.Tensor) -> bool:
        copied = self.copies[id(master)]
        return copied.shape == master.shape and copied.dtype == master.dtype

    def _refresh_one(self, master: torch.Tensor) -> None:
        stamp = stamp_of(master)
        if stamp is None or stamp != self._stamps[id(master)]:
            copied = transfer(master.detach(), self._backend, self._place)
            self.copies[id(master)].copy_(copied)
            self._stamps[id(master)] = stamp

    def _make(self, masters: list[torch.Tensor]) -> None:
        """Copy all weights; those that share memory (ties, views) go on sharing it."""
        copies: dict[int, torch.Tensor] = {}
        stamps = {id(master): stamp_of(master) for master in masters}
        self._masters = {}  # until all are there
        by_memory: dict[int, list[torch.Tensor]] = {}
        for master in masters:
            by_memory.setdefault(id(storage_object(master)), []).append(master)
        for group in by_memory.values():
            moved = self._backend.move_weights(_cloned(group), self._place)
            for master, data in zip(group, moved, strict=True):
                copies[id(master)] = _like(master, data)
        self.copies, self._stamps = copies, stamps
        self._masters = {id(master): master for master in masters}


def _cloned(group: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of tensors that share memory, which share memory of their own."""
    memory: Any = None
    cloned = []
    for tensor in group:
        if tensor.layout != torch.strided:
            cloned.append(tensor.detach().clone())
            continue
        memory = tensor.untyped_storage().clone() if memory is None else memory
        one = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        cloned.append(one.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride()))
    return cloned


def _like(master: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    if isinstance(master, nn.Parameter):
        return nn.Parameter(data, requires_grad=master.requires_grad)
    return data


def differentiable(
    masters: Iterable[torch.Tensor], backend: AbstractBackend, place: str
) -> dict[int, torch.Tensor]:
    """Copies of the weights that learn, for one call: autograd sends their gradients to the master."""
    learning = [master for master in masters if master.requires_grad]
    return {id(master): transfer(master, backend, place) for master in learning}
