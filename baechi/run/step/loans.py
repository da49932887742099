"""Copies that a layer works on in place of the tensors it was given, and making up for it."""

import copy
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.backend.sends import wait_for_readers
from baechi.backend.transfer import transfer
from baechi.run.step.aliases import view_of_original
from baechi.torchlib.modules.tables import content_of, differ, refill, tables_of
from baechi.torchlib.private.tensors import write_count
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in
from baechi.torchlib.tensors.storage import note_write, storage_object


class Loans:
    """Copies lent to a layer or to glue, and what it did with them.

    Args:
        backend: the devices.
        know: told of a view that is handed on, and of the view of the copy; None if there are no copies.
    """

    def __init__(
        self, backend: AbstractBackend, know: Callable[[torch.Tensor, torch.Tensor], None] | None = None
    ) -> None:
        self.backend = backend
        self._know = know
        self._lent: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._containers: list[tuple[Any, Any, Any]] = []
        self.objects: list[Any] = []
        """What was given beside tensors, plain data and containers of these."""

    def note(self, original: torch.Tensor, copied: torch.Tensor) -> None:
        """Remember a copy and the tensor that it stands for."""
        self._lent.append((original, copied, version_of(copied)))

    def note_container(self, original: Any, copied: Any) -> None:
        """Remember a container that had to be copied because a tensor in it was."""
        if isinstance(copied, MutableMapping):
            self._containers.append((original, copied, copy.copy(copied)))
        elif isinstance(copied, (list, deque)):
            self._containers.append((original, copied, content_of(copied)))
        elif tables_of(copied):
            self._containers.append((original, copied, _attributes(copied)))

    def made(self, result: Any) -> list[torch.Tensor]:
        """Of the tensors that were returned, those that are no copies of what was given.

        Args:
            result: what was returned.
        """
        lent = {id(copied) for _, copied, _ in self._lent}
        return [tensor for tensor in tensors_in(result) if id(tensor) not in lent]

    def settle(self, result: Any, *, written: bool = False) -> Any:
        """Make up for having worked on copies.

        What was written in place, to a tensor or a container, is written to the original too, and
        where an argument, or a view of one, is handed on it is the original, or a view of that, so that
        the model's code sees the objects that it would see on one device.

        Args:
            result: what was returned.
            written: whether tensors may have been written without their version saying so.

        Returns:
            The result with copies replaced by originals.
        """
        if not self._lent:
            return result
        for original, copied, version in self._lent:
            if version_of(copied) != version or written:
                home = self.backend.place_of(original)
                back_home = transfer(copied, self.backend, home)
                with self.backend.at(home):
                    if not written or not torch.equal(back_home, original):
                        wait_for_readers(original, self.backend)
                        original.copy_(back_home)
                        note_write(original)
        originals = {id(copied): original for original, copied, _ in self._lent}
        originals |= self._views(result, originals)
        containers = {id(copied): original for original, copied, _ in self._containers}

        def back(value: Any) -> Any:
            return map_tensors(lambda tensor: originals.get(id(tensor), tensor), value, known=containers)

        for original, copied, before in self._containers:
            _replay(original, copied, before, back)
        return back(result)

    def _views(self, result: Any, originals: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """By `id` of a returned view of a copy, the view of the original."""
        copies = {id(storage_object(copied)): (copied, original) for original, copied, _ in self._lent}
        found: dict[int, torch.Tensor] = {}
        for tensor in tensors_in(result):
            pair = copies.get(id(storage_object(tensor)))
            if pair is None or id(tensor) in originals:
                continue
            view = view_of_original(tensor, *pair)
            if view is not None and self._know is not None:
                found[id(tensor)] = view
                self._know(view, tensor)
        return found


def _replay(original: Any, copied: Any, before: Any, back: Callable[[Any], Any]) -> None:
    """Do to a container what was done to its copy."""
    if isinstance(copied, (list, deque)):
        if differ(content_of(copied), before):
            refill(original, [back(item) for item in copied])
    elif isinstance(copied, MutableMapping):
        for key in [key for key in before if key not in copied]:
            del original[key]
        for key, item in copied.items():
            if key not in before or item is not before[key]:
                original[key] = back(item)
    else:
        for name, item in _attributes(copied).items():
            if name not in before or item is not before[name]:
                setattr(original, name, back(item))


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object, those in slots among them."""
    return {name: item for table in tables_of(value) for name, item in content_of(table).items()}


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written in place; inference tensors do not count."""
    return 0 if tensor.is_inference() else write_count(tensor)
