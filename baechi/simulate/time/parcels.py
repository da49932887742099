"""What moves between the layers of a plan, as the engine needs it.

A parcel leaves when all its givers have run, and its takers run when it has arrived. Forward, a
tensor makes one parcel for each device that reads it (its own included, where nothing travels):

    giver: who makes it    >    takers: who reads it on that device

Backward is the same turned around: the gradients of all who read it there go back as one. An edge
that only orders two layers is a parcel without a tensor, forward only. Inputs have no giver.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from baechi.cost.indexed import FROM_HOST, IndexedGraph

NO_TENSOR = -1

RETURNED = -2
"""What the model returns, as a tensor of a parcel: from there down."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A tensor or gradient on its way. Layers, tensors and devices are indexes.

    Args:
        tensor: what travels, or `NO_TENSOR`.
        size_bytes: its size.
        source: where it is.
        target: where it goes.
        givers: layers that run before it leaves.
        takers: layers that run after it has arrived.
    """

    tensor: int
    size_bytes: int
    source: int
    target: int
    givers: tuple[int, ...]
    takers: tuple[int, ...]

    @property
    def travels(self) -> bool:
        """Whether it takes a channel."""
        return self.tensor != NO_TENSOR and self.source != self.target


def forward_parcels(
    indexed: IndexedGraph, device_of: Sequence[int], place: Sequence[int], host: int
) -> list[Parcel]:
    """The parcels of a forward.

    Args:
        indexed: the graph.
        device_of: by layer, its device.
        place: by layer, its place in the plan's order.
        host: the host's index.

    Returns:
        In the order in which they queue when they are ready at the same time: as they are needed.
    """
    parcels = []
    for tensor, consumers in enumerate(indexed.consumers):
        maker = indexed.source[tensor]
        source, givers = (host, ()) if maker == FROM_HOST else (device_of[maker], (maker,))
        readers: dict[int, list[int]] = {}
        for reader in sorted(consumers, key=place.__getitem__):
            readers.setdefault(device_of[reader], []).append(reader)
        size = indexed.size_bytes[tensor]
        parcels += [Parcel(tensor, size, source, there, givers, tuple(r)) for there, r in readers.items()]
    for layer, followers in enumerate(indexed.after):
        for follower in followers:
            ends = device_of[layer], device_of[follower]
            parcels.append(Parcel(NO_TENSOR, 0, *ends, (layer,), (follower,)))
    return sorted(parcels, key=lambda parcel: place[parcel.takers[0]])


def downloads(indexed: IndexedGraph, device_of: Sequence[int], host: int) -> list[Parcel]:
    """What the model returns goes to the host, one after the other.

    Args:
        indexed: the graph.
        device_of: by layer, its device.
        host: the host's index.
    """
    return [
        Parcel(RETURNED - number, tensor.size_bytes, device_of[tensor.maker], host, (tensor.maker,), ())
        for number, tensor in enumerate(indexed.returned)
    ]


def backward_parcels(
    indexed: IndexedGraph,
    forward: Sequence[Parcel],
    device_of: Sequence[int],
    place: Sequence[int],
    host: int,
) -> list[Parcel]:
    """The parcels of a backward.

    Args:
        indexed: the graph.
        forward: the parcels of the forward.
        device_of: by layer, its device.
        place: by layer, its place in the plan's order.
        host: the host's index; inputs get no gradient, and that of a loss comes from there.

    Returns:
        In the order in which they queue when they are ready at the same time: as they are needed.
    """
    turned = []
    for parcel in forward:
        if parcel.tensor != NO_TENSOR and parcel.source != host:
            graded = set(indexed.graded[parcel.tensor])
            givers = tuple([reader for reader in parcel.takers if reader in graded])
            if givers:
                size, there, home = parcel.size_bytes, parcel.target, parcel.source
                turned.append(Parcel(parcel.tensor, size, there, home, givers, parcel.givers))
    for loss in downloads(indexed, device_of, host):
        if indexed.returned[RETURNED - loss.tensor].is_loss:
            turned.append(Parcel(loss.tensor, loss.size_bytes, host, loss.source, (), loss.givers))
    return sorted(turned, key=lambda parcel: -place[parcel.takers[0]])
