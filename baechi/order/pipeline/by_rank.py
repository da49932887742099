"""What each rank does of one total order: its computations, and its ends of the transfers.

    the total order        F0 on rank 0 · 0 ─▶ 1 · F0 on rank 1 · F1 on rank 0 · 0 ─▶ 1 · B0 on rank 1 · ...
    rank 0                 F0 · send · F1 · send · ...
    rank 1                 receive · F0 · receive · B0 · ...

A rank issues what is its own in this order, and waits only for transfers that it has issued: where it reads
one, or where too many of its sends are under way. So no rank waits in a circle, also if a send is over only
when it is received: of all that wait, let one wait for the transfer that is first in the order. The other end
has not issued it, so it waits for an earlier one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Computation:
    """A program of a microbatch.

    Args:
        rank: who runs it.
        microbatch: of which it is.
        position: when, among those of its microbatch.
    """

    rank: int
    microbatch: int
    position: int


@dataclass(slots=True, eq=False)
class Transfer:
    """A value that goes from rank to rank.

    Args:
        number: its place among the transfers of the order.
        source: the rank that sends.
        target: the rank that receives.
        microbatch: of which the value is.
        slot: where it arrives; -1 for the state of a random generator.
        original: where it comes from.
        backward: whether a backward reads it.
        shape: of the value.
        stride: as it is laid out there and here.
        dtype: in torch's words.
        fetched: whether it is sent when it is first read, not when it is made.
        last: whether nothing else is sent of what a program has just made.
        shared: whether all microbatches read it: a weight.
        uses: how often the target would have read the original.
    """

    number: int
    source: int
    target: int
    microbatch: int
    slot: int
    original: int
    backward: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    fetched: bool = False
    last: bool = False
    shared: bool = False
    uses: int = 0

    def __str__(self) -> str:
        return (
            f"transfer {self.number}: microbatch {self.microbatch}, {self.dtype} of shape {self.shape} and "
            f"strides {self.stride} from rank {self.source} to rank {self.target}, "
            f"{'backward' if self.backward else 'forward'}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """Values that travel together.

    Args:
        source: the rank that sends.
        target: the rank that receives.
        backward: whether a backward reads them.
        transfers: they, in their order.
    """

    source: int
    target: int
    backward: bool
    transfers: tuple[Transfer, ...]


Action = Computation | Message


def in_messages(
    order: Iterable[Computation | Transfer], bytes_of: Callable[[Transfer], int], most_bytes: int
) -> list[Action]:
    """The total order, in which small values that follow each other on one way are one message.

    Args:
        order: computations and single values.
        bytes_of: how large a value is.
        most_bytes: so large a message of several values may be.
    """
    found: list[Action] = []
    size = 0
    for one in order:
        if isinstance(one, Computation):
            found.append(one)
            continue
        last, own = found[-1] if found else None, bytes_of(one)
        way = one.source, one.target, one.backward
        if isinstance(last, Message) and (last.source, last.target, last.backward) == way:
            if size + own <= most_bytes:
                size += own
                found[-1] = Message(*way, (*last.transfers, one))
                continue
        size = own
        found.append(Message(*way, (one,)))
    return found


def of_rank(order: Iterable[Action], rank: int) -> list[Action]:
    """The total order, restricted to what one rank takes part in."""
    return [
        one
        for one in order
        if (rank == one.rank if isinstance(one, Computation) else rank in (one.source, one.target))
    ]
