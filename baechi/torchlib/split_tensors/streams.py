"""On which streams backward works on the pieces of a weight: those of the forward.

    forward    the caller's thread              device 0: stream a    device 1: stream b
    backward   autograd's thread of device 0    device 0: stream a    device 1: its default stream

Autograd sets the stream of one device a node. What makes and adds gradients in pieces works on several.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from baechi.torchlib.private.autograd import NO_GRAPH_TASK, current_graph_task_id
from baechi.torchlib.split_tensors.tensor import SplitTensor

Streams = tuple[Any, ...]
"""One a device; none where all pieces lie on one, or devices have none."""

_NOTHING = nullcontext()
_WITHOUT = ("cpu", "meta", "mps")


def streams_for(tensor: SplitTensor) -> Streams:
    """The streams on which the caller computes where pieces lie.

    Args:
        tensor: a tensor in pieces. It keeps them, for what runs again in backward.
    """
    if current_graph_task_id() == NO_GRAPH_TASK:
        devices = dict.fromkeys([piece.device for piece in tensor.pieces])
        if len(devices) > 1 and tensor.device.type not in _WITHOUT:
            tensor.streams = tuple([torch.accelerator.current_stream(device.index) for device in devices])
    return tensor.streams


def streams_among(values: Iterable[Any]) -> Streams:
    """The streams of the first tensor in pieces that has some.

    Args:
        values: anything.
    """
    found = (value.streams for value in values if isinstance(value, SplitTensor) and value.streams)
    return next(found, ())


def in_backward_on(streams: Streams) -> AbstractContextManager[None]:
    """Within this context, a node of backward works on streams, each on its device.

    Args:
        streams: one a device.
    """
    if not streams or current_graph_task_id() == NO_GRAPH_TASK:
        return _NOTHING
    return _on(streams)


@contextmanager
def _on(streams: Streams) -> Iterator[None]:
    index = torch.accelerator.current_device_index()
    before = [torch.accelerator.current_stream(stream.device.index) for stream in streams]
    _set(streams, index)
    try:
        yield
    finally:
        _set(before, index)


def _set(streams: Sequence[Any], index: int) -> None:
    for stream in streams:
        torch.accelerator.set_stream(stream)
    torch.accelerator.set_device_index(index)


def follow(streams: Streams) -> None:
    """What this thread computes from now on comes after what was issued on streams.

    Args:
        streams: one a device.
    """
    for stream in streams:
        current = torch.accelerator.current_stream(stream.device.index)
        if current != stream:
            current.wait_event(stream.record_event())
