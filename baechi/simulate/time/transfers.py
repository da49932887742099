"""The transfers between the layers of a plan, for the engine.

A transfer leaves when all its producers have run, and its consumers run when it has arrived. In forward
a tensor has one transfer for each device that reads it. On its own device nothing travels.

    producer: the layer that makes it    >    consumers: the layers that read it on that device

Backward is the reverse: the gradients of all consumers on a device are sent back as one sum. An edge
that only orders two layers is a transfer without a tensor, in forward only. Inputs have no producer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baechi.cost.indexed_graph import FROM_HOST, IndexedGraph

NO_TENSOR = -1

RETURNED = -2
"""Tensor numbers of the model's outputs in transfers: this one and below."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor or gradient on its way. Layers, tensors and devices are indexes.

    Args:
        tensor: what travels, or `NO_TENSOR`.
        size_bytes: what travels.
        copy_bytes: the memory that it takes where it arrives.
        source: where it is.
        target: where it goes.
        producers: layers that must run before it leaves.
        consumers: layers that run after it has arrived.
    """

    tensor: int
    size_bytes: int
    copy_bytes: int
    source: int
    target: int
    producers: tuple[int, ...]
    consumers: tuple[int, ...]

    @property
    def travels(self) -> bool:
        """Whether it takes a channel."""
        return self.tensor != NO_TENSOR and self.source != self.target


def forward_transfers(
    indexed: IndexedGraph, device_of: Sequence[int], place: Sequence[int], host: int
) -> list[Transfer]:
    """The transfers of a forward."""
    transfers = []
    for tensor, consumers in enumerate(indexed.consumers):
        maker = indexed.source[tensor]
        source, producers = (host, ()) if maker == FROM_HOST else (device_of[maker], (maker,))
        readers: dict[int, list[int]] = {}
        for reader in sorted(consumers, key=place.__getitem__):
            readers.setdefault(device_of[reader], []).append(reader)
        sizes = indexed.size_bytes[tensor], indexed.copy_bytes[tensor]
        transfers += [
            Transfer(tensor, *sizes, source, there, producers, tuple(r)) for there, r in readers.items()
        ]
    for layer, followers in enumerate(indexed.after):
        for follower in followers:
            ends = device_of[layer], device_of[follower]
            transfers.append(Transfer(NO_TENSOR, 0, 0, *ends, (layer,), (follower,)))
    return sorted(transfers, key=lambda transfer: place[transfer.consumers[0]])


def downloads(indexed: IndexedGraph, device_of: Sequence[int], host: int) -> list[Transfer]:
    """The transfers of the model's outputs to the host, one after the other; none if they stay."""
    return [
        _dense(RETURNED - number, tensor.size_bytes, device_of[tensor.maker], host, (tensor.maker,), ())
        for number, tensor in enumerate(indexed.fetched)
    ]


def backward_transfers(
    indexed: IndexedGraph,
    forward: Sequence[Transfer],
    device_of: Sequence[int],
    place: Sequence[int],
    host: int,
) -> list[Transfer]:
    """The transfers of a backward."""
    turned = []
    for transfer in forward:
        if transfer.tensor != NO_TENSOR and transfer.source != host:
            graded = set(indexed.graded[transfer.tensor])
            producers = tuple([reader for reader in transfer.consumers if reader in graded])
            if producers:
                size, there, home = transfer.size_bytes, transfer.target, transfer.source
                turned.append(_dense(transfer.tensor, size, there, home, producers, transfer.producers))
    for loss in downloads(indexed, device_of, host):
        if indexed.returned[RETURNED - loss.tensor].is_loss:
            turned.append(_dense(loss.tensor, loss.size_bytes, host, loss.source, (), loss.producers))
    return sorted(turned, key=lambda transfer: -place[transfer.consumers[0]])


def _dense(tensor: int, size_bytes: int, *rest: Any) -> Transfer:
    """A transfer of a contiguous tensor: its copy takes what travels."""
    return Transfer(tensor, size_bytes, size_bytes, *rest)
