"""Copies of arguments on a layer's device, and writing changes to them back to the originals."""

import copy
from collections import deque
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, Protocol

import torch

from baechi.backend import AbstractBackend
from baechi.backend.sends import wait_for_readers
from baechi.backend.transfer import transfer
from baechi.run.step.aliases import view_of_original
from baechi.torchlib.modules.tables import content_of, differ, refill, tables_of
from baechi.torchlib.private.tensors import write_count
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in
from baechi.torchlib.tensors.storage import mark_of, note_write, storage_object


class WriteBack(Protocol):
    """Repeats on an original what was written to its copy."""

    def __call__(self, original: torch.Tensor, copied: torch.Tensor, *, unsaid: bool) -> None:
        """Write the original.

        Args:
            original: the original.
            copied: its copy.
            unsaid: whether the copy may have been written without a change of its version counter.
        """


ViewOf = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor | None]
"""From a view of a copy, the copy and the original, the same view of the original."""


class Loans:
    """The argument copies of one call of a layer or functional op (glue).

    Args:
        backend: the devices.
        know: is told of a returned view, and of its counterpart of the copy; None if there are no copies.
        write: repeats on an original what was written to its copy.
        view_of: gives the view of an original.
    """

    def __init__(
        self,
        backend: AbstractBackend,
        know: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
        write: WriteBack | None = None,
        view_of: ViewOf = view_of_original,
    ) -> None:
        self.backend = backend
        self._know = know
        self._write = write
        self._view_of = view_of
        self.lent: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        """By `id` of an original: it, its copy, and the version of the copy before the call."""
        self._containers: list[tuple[Any, Any, Any]] = []
        self.objects: list[Any] = []
        """Arguments that are neither tensors, plain data nor containers of these."""

    def note_container(self, original: Any, copied: Any) -> None:
        """Remember a container that was copied because a tensor in it was copied."""
        if isinstance(copied, MutableMapping):
            self._containers.append((original, copied, copy.copy(copied)))
        elif isinstance(copied, (list, deque)):
            self._containers.append((original, copied, content_of(copied)))
        elif tables_of(copied):
            self._containers.append((original, copied, _attributes(copied)))

    def made(self, result: Any) -> list[torch.Tensor]:
        """The returned tensors that are not copies of arguments."""
        if isinstance(result, torch.Tensor):
            for _, copied, _ in self.lent.values():
                if copied is result:
                    return []
            return [result]
        lent = {id(copied) for _, copied, _ in self.lent.values()}
        return [tensor for tensor in tensors_in(result) if id(tensor) not in lent]

    def settle(self, result: Any, *, written: bool = False) -> Any:
        """Apply the call's effects on copies to the originals.

        In-place writes to a copied tensor or container are repeated on the original. Where the call
        returns a copy, or a view of one, the result gets the original or its view instead. So the model's
        code sees the same objects as on one device.
        """
        if not self.lent:
            return result
        if isinstance(result, torch.Tensor) and not written and not self._containers:
            here = mark_of(result)
            for _, copied, version in self.lent.values():
                mark = mark_of(copied)  # its memory's: what shares the memory has the same
                if version_of(copied) != version or mark is None or mark is here:
                    break
            else:  # most often: it wrote nothing that it was lent, and returned memory of its own
                return result
        for original, copied, version in self.lent.values():
            if version_of(copied) != version or written:
                write = self._write or partial(write_back, self.backend)
                write(original, copied, unsaid=written)
        originals = {id(copied): original for original, copied, _ in self.lent.values()}
        originals |= self._views(result, originals)
        containers = {id(copied): original for original, copied, _ in self._containers}

        def back(value: Any) -> Any:
            return map_tensors(lambda tensor: originals.get(id(tensor), tensor), value, known=containers)

        for original, copied, before in self._containers:
            _replay(original, copied, before, back)
        return back(result)

    def _views(self, result: Any, originals: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """By `id` of a returned view of a copy, the view of the original."""
        lent = self.lent.values()
        copies = {id(storage_object(copied)): (copied, original) for original, copied, _ in lent}
        found: dict[int, torch.Tensor] = {}
        for tensor in tensors_in(result):
            pair = copies.get(id(storage_object(tensor)))
            if pair is None or id(tensor) in originals:
                continue
            view = self._view_of(tensor, *pair)
            if view is not None and self._know is not None:
                found[id(tensor)] = view
                self._know(view, tensor)
        return found


def write_back(
    backend: AbstractBackend, original: torch.Tensor, copied: torch.Tensor, *, unsaid: bool
) -> None:
    """Repeat on an original what was written to its copy."""
    home = backend.place_of(original)
    back_home = transfer(copied, backend, home)
    with backend.at(home):
        if not unsaid or not torch.equal(back_home, original):
            wait_for_readers(original, backend)
            original.copy_(back_home)
            note_write(original)


def _replay(original: Any, copied: Any, before: Any, back: Callable[[Any], Any]) -> None:
    """Apply to a container the changes that were made to its copy."""
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
    """The attributes of an object, including those in slots."""
    return {name: item for table in tables_of(value) for name, item in content_of(table).items()}


def version_of(tensor: torch.Tensor) -> int:
    """A tensor's version counter; inference tensors have none."""
    try:
        return write_count(tensor)
    except RuntimeError:
        return 0
