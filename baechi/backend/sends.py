"""Pending sends: a write to a tensor, or one whose target is unknown, waits until they have read it.

Nothing writes a tensor that is gone: the allocator gives its memory away when it has been read. So a write
whose target is unknown waits for the sends of tensors that are still there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

import torch

from baechi.backend.abstract import AbstractBackend
from baechi.torchlib.tensors.storage import Mark, mark_of, set_mark, storage_object


class Sent(NamedTuple):
    """A transfer that reads a tensor.

    Args:
        there: gives None when the tensor's memory is gone.
        left: happens when it has been read.
    """

    there: Callable[[], Any]
    left: Any


def note_sent(tensor: torch.Tensor, backend: AbstractBackend, source: str, stream: Any, left: Any) -> None:
    """Note that a transfer reads a tensor: a later write waits for it."""
    mark = mark_of(tensor)
    if mark is None:  # an input of the model, or made outside of it
        mark = Mark(source)
        set_mark(tensor, mark)
    if mark.sent is None:
        mark.sent = {}
    mark.sent[stream] = left
    memory = storage_object(tensor)
    # a sparse tensor, or one of another library, has more memory than one storage
    alone = tensor.layout is torch.strided and isinstance(memory, torch.UntypedStorage)
    sent = Sent(ref(memory) if alone else lambda: mark, left)
    backend.outstanding.setdefault(source, {}).setdefault(stream, []).append(sent)


def wait_for_readers(tensor: torch.Tensor, backend: AbstractBackend) -> None:
    """Make the compute stream where a tensor lies wait for the transfers that read it."""
    mark = mark_of(tensor)
    if mark is not None and mark.sent:
        stream = backend.compute_stream(backend.place_of(tensor))
        for event in mark.sent.values():
            backend.wait(stream, event)
        mark.sent = None


def wait_for_sends(backend: AbstractBackend, place: str) -> None:
    """Let what computes at a place from now on come after the transfers from there of what is still there."""
    for sends in backend.outstanding.pop(place, {}).values():
        # a stream runs in order: its newest send comes after the others
        newest = next((sent for sent in reversed(sends) if sent.there() is not None), None)
        if newest is not None:
            backend.wait(backend.compute_stream(place), newest.left)


def wait_for_all_sends(backend: AbstractBackend) -> None:
    """Let what computes anywhere from now on come after the transfers from there of what is still there."""
    for place in list(backend.outstanding):
        wait_for_sends(backend, place)
