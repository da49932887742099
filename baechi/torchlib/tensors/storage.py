"""A mark on a storage: where it lies, and when it was made.

The mark hangs on the `UntypedStorage` object, which lives as long as the storage does, so views
share it, and it is gone with the storage. (A table by address would be wrong: addresses are used
again at once.)
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from baechi.torchlib.private.modes import without_dispatch_modes
from baechi.torchlib.private.tensors import SPARSE_PARTS, sparse_values
from baechi.torchlib.private.transforms import as_batch, is_batch, is_wrapped, unwrapped_once

WEIGHT = -1
UNSET = -2

_NAME = "_baechi_mark"

_ROWS, _COLUMNS = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
_PARTS = {
    torch.sparse_coo: SPARSE_PARTS,
    torch.sparse_csr: _ROWS,
    torch.sparse_bsr: _ROWS,
    torch.sparse_csc: _COLUMNS,
    torch.sparse_bsc: _COLUMNS,
}
"""What a sparse tensor is made of, by layout."""
_RAGGED = ("values", "offsets")
"""What a nested tensor is made of; one that is strided has no offsets on a device."""


class Mark:
    """What is known of a storage.

    Args:
        place: where it lies, if torch does not know: on an emulated cluster, or in a part of a GPU; None
            if it has no place yet.
        made: the turn in the step at which a layer or glue last wrote it; `WEIGHT` is before them
            all, `UNSET` if unknown.
        size_bytes: how large it is, where an emulated cluster counts it.

    Attributes:
        block: what an emulated cluster knows of it.
        sent: by stream, the event after the last transfer there that read it; a later
            write waits for these. None if there is none.
        due: kernels that made it while it had no place; its first user's device is charged for them.
        writes: how often a step said that it writes it (`x.data.add_(1)` moves no version of `x`).
    """

    __slots__ = ("__weakref__", "block", "due", "made", "place", "sent", "size_bytes", "writes")

    # written out: every result of every layer gets one, and a dataclass's takes twice as long
    def __init__(self, place: str | None = None, made: int = UNSET, size_bytes: int = 0) -> None:
        self.place = place
        self.made = made
        self.size_bytes = size_bytes
        self.block: Any = None
        self.sent: dict[Any, Any] | None = None
        self.due: Sequence[Any] = ()
        self.writes = 0


def mark_of(tensor: torch.Tensor) -> Mark | None:
    """The mark of a tensor's storage, if it has one."""
    try:
        mark: Mark | None = tensor.untyped_storage().__dict__.get(_NAME)
    except (NotImplementedError, RuntimeError):  # a wrapper of functorch's, or a tensor without storage
        mark = getattr(storage_object(tensor), _NAME, None)
    return mark


def marked_with(place: str) -> Callable[[torch.Tensor], bool]:
    """A function that says whether a tensor's mark names a place; asked for each argument."""

    def is_marked(tensor: torch.Tensor) -> bool:
        try:
            mark = tensor.untyped_storage().__dict__.get(_NAME)
        except (NotImplementedError, RuntimeError):
            mark = mark_of(tensor)
        return mark is not None and mark.place == place

    return is_marked


def set_mark(tensor: torch.Tensor, mark: Mark) -> None:
    """Put a mark on a tensor's storage."""
    setattr(storage_object(tensor), _NAME, mark)


def remove_mark(tensor: torch.Tensor) -> None:
    """Take the mark off a tensor's storage."""
    vars(storage_object(tensor)).pop(_NAME, None)


def note_write(tensor: torch.Tensor) -> None:
    """Count a write on a tensor's mark: not every tensor has a version counter."""
    mark = mark_of(tensor)
    if mark is not None:
        mark.writes += 1


def stamp(tensor: torch.Tensor, place: str | None, turn: int, *, renew: bool) -> None:
    """Say where a result lies and when it was made."""
    try:
        table = tensor.untyped_storage().__dict__
    except (NotImplementedError, RuntimeError):
        table = vars(storage_object(tensor))
    mark: Mark | None = table.get(_NAME)
    if mark is None:
        table[_NAME] = Mark(place, turn)
        return
    mark.place = mark.place or place
    if renew or mark.made == UNSET:
        mark.made = turn


def hand_on_age(tensor: torch.Tensor, copied: torch.Tensor, place: str) -> None:
    """A copy at a place is as old as what it is a copy of."""
    mark = mark_of(tensor)
    stamp(copied, place, UNSET if mark is None else mark.made, renew=True)


def made_at(tensor: torch.Tensor) -> int:
    """The turn at which a tensor's storage was last written; `UNSET` if unknown."""
    mark = mark_of(tensor)
    return UNSET if mark is None else mark.made


def storage_object(tensor: torch.Tensor) -> Any:
    """The object that stands for a tensor's memory: its storage, or itself if it has none."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        if is_wrapped(tensor):
            return storage_object(unwrapped_once(tensor))
        if is_batch(tensor):
            return storage_object(unwrapped(tensor))
        if tensor.layout != torch.sparse_coo:
            return tensor
        with without_dispatch_modes():  # fake tensors would have other values
            return sparse_values(tensor).untyped_storage()


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside of all that `torch.vmap`, `torch.func.grad` and the like wrap around it."""
    while is_wrapped(tensor):
        tensor = unwrapped_once(tensor)
    batch = as_batch(tensor)
    return tensor if batch is None else batch[0]


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory is one storage of its own: it is not sparse, not nested, and no wrapper."""
    wrapper = is_wrapped(tensor) or is_batch(tensor)
    return tensor.layout is torch.strided and not tensor.is_nested and not wrapper


def memories(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Plain tensors that hold what a tensor holds: its parts if it is sparse or nested, else itself."""
    if tensor.is_nested:
        parts: tuple[str, ...] = _RAGGED if tensor.layout == torch.jagged else _RAGGED[:1]
    else:
        parts = _PARTS.get(tensor.layout, ())
    if not parts:
        return [tensor]
    with torch.no_grad(), without_dispatch_modes():
        return [getattr(tensor, part)() for part in parts]


def storage_bytes(tensor: torch.Tensor) -> int:
    """How large the memory behind a tensor is: its storage, its parts, or at least its elements."""
    try:
        return tensor.untyped_storage().nbytes()
    except NotImplementedError:
        parts = _PARTS.get(tensor.layout, ())
        with without_dispatch_modes():
            held = sum([getattr(tensor, part)().untyped_storage().nbytes() for part in parts])
        return held if parts else tensor.numel() * tensor.element_size()
