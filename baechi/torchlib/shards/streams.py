"""On which streams backward works on the shards of a weight: those of the forward.

    forward    the caller's thread              device 0: stream a    device 1: stream b
    backward   autograd's thread of device 0    device 0: stream a    device 1: its default stream

Autograd sets the stream of one device a node. What makes and adds sharded gradients works on several.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from baechi.torchlib.private.autograd import NO_GRAPH_TASK, current_graph_task_id
from baechi.torchlib.shards.weight import ShardedWeight
from baechi.torchlib.streams import Streams, on_streams, streams_now

_NOTHING = nullcontext()


def streams_for(tensor: ShardedWeight) -> Streams:
    """The streams on which the caller computes where shards lie."""
    if current_graph_task_id() == NO_GRAPH_TASK:
        devices = dict.fromkeys([shard.device for shard in tensor.shards])
        if len(devices) > 1:
            tensor.streams = streams_now(devices)
    return tensor.streams


def streams_among(values: Iterable[Any]) -> Streams:
    """The streams of the first sharded tensor that has some."""
    found = (value.streams for value in values if isinstance(value, ShardedWeight) and value.streams)
    return next(found, ())


def in_backward_on(streams: Streams) -> AbstractContextManager[None]:
    """Within this context, a node of backward works on streams, each on its device."""
    if not streams or current_graph_task_id() == NO_GRAPH_TASK:
        return _NOTHING
    return on_streams(streams)
