"""Pending sends: a write to a tensor, or one whose target is unknown, waits until they have read it."""

from typing import Any

import torch

from baechi.backend.abstract import AbstractBackend
from baechi.torchlib.tensors.storage import Mark, mark_of, set_mark


def note_sent(tensor: torch.Tensor, backend: AbstractBackend, source: str, stream: Any, left: Any) -> None:
    """Note that a transfer reads a tensor: a later write waits for it.

    Args:
        tensor: what is sent.
        backend: the devices.
        source: where it lies.
        stream: the one that reads it.
        left: happens when it has been read.
    """
    backend.outstanding.setdefault(source, {})[stream] = left
    mark = mark_of(tensor)
    if mark is None:  # an input of the model, or made outside of it
        mark = Mark(source)
        set_mark(tensor, mark)
    if mark.sent is None:
        mark.sent = {}
    mark.sent[stream] = left


def wait_for_readers(tensor: torch.Tensor, backend: AbstractBackend) -> None:
    """Make the compute stream where a tensor lies wait for the transfers that read it.

    Args:
        tensor: a tensor that is about to be written in place.
        backend: the devices.
    """
    mark = mark_of(tensor)
    if mark is not None and mark.sent:
        stream = backend.compute_stream(backend.place_of(tensor))
        for event in mark.sent.values():
            backend.wait(stream, event)
        mark.sent = None


def wait_for_sends(backend: AbstractBackend, place: str) -> None:
    """Let what computes at a place from now on come after all transfers that left from there.

    Args:
        backend: the devices.
        place: where something may write, and cannot say what.
    """
    sends = backend.outstanding.pop(place, None)
    if sends:
        stream = backend.compute_stream(place)
        for event in sends.values():
            backend.wait(stream, event)


def wait_for_all_sends(backend: AbstractBackend) -> None:
    """Let what computes anywhere from now on come after all transfers that left from there.

    Args:
        backend: the devices, whose tensors belong to the caller again.
    """
    for place in list(backend.outstanding):
        wait_for_sends(backend, place)
