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

    def turned(self) -> "Parcel":
        """The gradient's way back."""
        return Parcel(self.tensor, self.size_bytes, self.target, self.source, self.takers, self.givers)


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


def backward_parcels(forward: Sequence[Parcel], place: Sequence[int], host: int) -> list[Parcel]:
    """The parcels of a backward.

    Args:
        forward: the parcels of the forward.
        place: by layer, its place in the plan's order.
        host: the host's index; inputs get no gradient.

    Returns:
        In the order in which they queue when they are ready at the same time: as they are needed.
    """
    turned = [p.turned() for p in forward if p.tensor != NO_TENSOR and p.source != host]
    return sorted(turned, key=lambda parcel: -place[parcel.takers[0]])
