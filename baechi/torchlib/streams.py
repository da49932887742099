"""The streams on which a thread computes, one a device: others for a while, in order with its own."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Streams = tuple[Any, ...]
"""One a device; none where devices have none."""

_WITHOUT = ("cpu", "meta", "mps")


def has_streams(device: torch.device, kind: str | None) -> bool:
    """Whether work on a device is put on streams, and the host goes on at once."""
    return device.type not in _WITHOUT and device.type == kind


def streams_now(devices: Iterable[torch.device | None]) -> Streams:
    """The streams on which this thread computes."""
    accelerator = torch.accelerator.current_accelerator()
    kind = None if accelerator is None else accelerator.type
    found = dict.fromkeys([one for one in devices if one is not None and has_streams(one, kind)])
    return tuple([torch.accelerator.current_stream(device.index) for device in found])


@contextmanager
def on_streams(streams: Sequence[Any]) -> Iterator[None]:
    """Within this context this thread computes on other streams. Nothing waits for anything."""
    if not streams:
        yield
        return
    index = torch.accelerator.current_device_index()
    before = [torch.accelerator.current_stream(stream.device.index) for stream in streams]
    _set(streams, index)
    try:
        yield
    finally:
        _set(before, index)


def follow(streams: Sequence[Any]) -> None:
    """What this thread computes from now on comes after what was issued on streams."""
    for stream in streams:
        current = torch.accelerator.current_stream(stream.device.index)
        if current != stream:
            current.wait_event(stream.record_event())


def _set(streams: Sequence[Any], index: int) -> None:
    for stream in streams:
        torch.accelerator.set_stream(stream)
    torch.accelerator.set_device_index(index)
