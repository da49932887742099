"""One call of the root module: what travelled, and the copies that are still good."""

import copy
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from baechi.backend import AbstractBackend
from baechi.backend.marks import stamp
from baechi.backend.nest import map_tensors, tensors_in
from baechi.backend.transfer import transfer

_Key = tuple[str, int, bool]


class Step:
    """The state of one step; gone when the step is over.

    Args:
        backend: the devices.
    """

    def __init__(self, backend: AbstractBackend) -> None:
        self.backend = backend
        self.turn = 0
        self.transfers = 0
        self.transfer_bytes = 0
        # by tensor, then by place, version and grad mode: the copy, and its own version when made
        self._copies = WeakTensorKeyDictionary()

    def bring(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        """A tensor at a place: itself if it lies there, else its copy there, made once.

        A tensor that was written since is another tensor, and so is a copy that was written.

        Args:
            tensor: any tensor.
            place: a device's name, or another place.

        Returns:
            A tensor with the same values and layout; its gradient finds the way back.
        """
        if self.backend.place_of(tensor) == place or self.backend.adopt(tensor, place):
            return tensor
        slots: dict[_Key, tuple[torch.Tensor, int]] = self._copies.setdefault(tensor, {})
        key = (place, version_of(tensor), torch.is_grad_enabled())
        if key in slots and slots[key][1] == version_of(slots[key][0]):
            return slots[key][0]
        copied = transfer(tensor, self.backend, place)
        slots[key] = (copied, version_of(copied))
        self.transfers += 1
        self.transfer_bytes += tensor.numel() * tensor.element_size()
        return copied

    def lend(self, values: Any, place: str) -> tuple[Any, "Loans"]:
        """Bring everything that a layer, or glue, was given to its device.

        Args:
            values: arguments, nested as they are.
            place: the device.

        Returns:
            The arguments at the place, and what was lent for it.
        """
        loans = Loans(self)

        def bring(tensor: torch.Tensor) -> torch.Tensor:
            copied = self.bring(tensor, place)
            if copied is not tensor:
                loans.note(tensor, copied)
            return copied

        return map_tensors(bring, values, loans.note_container), loans

    def stamp(self, result: Any, place: str | None, *, renew: bool) -> None:
        """Say that a result was made now.

        Args:
            result: what a layer or glue returned.
            place: where it ran; None if that is nowhere yet.
            renew: see `marks.stamp`.
        """
        self.turn += 1
        for tensor in tensors_in(result):
            stamp(tensor, place, self.turn, renew=renew)


class Loans:
    """Copies lent to a layer or to glue, and what it did with them.

    Args:
        step: the step that made them.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._lent: list[tuple[torch.Tensor, torch.Tensor, int]] = []

        self._containers: list[tuple[Any, Any, Any]] = []

    def note(self, original: torch.Tensor, copied: torch.Tensor) -> None:
        """Remember a copy and the tensor that it stands for."""
        self._lent.append((original, copied, version_of(copied)))

    def note_container(self, original: Any, copied: Any) -> None:
        """Remember a container that had to be copied because a tensor in it was."""
        if isinstance(copied, (list, MutableMapping)):
            self._containers.append((original, copied, copy.copy(copied)))

    def settle(self, result: Any, *, written: bool = False) -> Any:
        """Make up for having worked on copies.

        What was written in place, to a tensor or a container, is written to the original too, and
        where an argument is handed on it is the original, so that the model's code sees the objects
        that it would see on one device.

        Args:
            result: what was returned.
            written: whether tensors may have been written without their version saying so.

        Returns:
            The result with copies replaced by originals.
        """
        if not self._lent:
            return result
        for original, copied, version in self._lent:
            if version_of(copied) != version or (written and not torch.equal(copied, original)):
                home = self.step.backend.place_of(original)
                original.copy_(transfer(copied, self.step.backend, home))
        originals = {id(copied): original for original, copied, _ in self._lent}
        originals |= {id(copied): original for original, copied, _ in self._containers}

        def back(value: Any) -> Any:
            if id(value) in originals:
                return originals[id(value)]
            return map_tensors(lambda tensor: originals.get(id(tensor), tensor), value)

        for original, copied, before in self._containers:
            _replay(original, copied, before, back)
        return back(result)


def _replay(original: Any, copied: Any, before: Any, back: Callable[[Any], Any]) -> None:
    """Do to a container what was done to its copy."""
    if isinstance(copied, list):
        if len(copied) != len(before) or any(a is not b for a, b in zip(copied, before, strict=True)):
            original[:] = [back(item) for item in copied]
        return
    for key in [key for key in before if key not in copied]:
        del original[key]
    for key, item in copied.items():
        if key not in before or item is not before[key]:
            original[key] = back(item)


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written in place; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version
