"""What each rank does of one total order: its computations, and its ends of the transfers.

    the total order        F0 on rank 0 · 0 ─▶ 1 · F0 on rank 1 · F1 on rank 0 · 0 ─▶ 1 · B0 on rank 1 · ...
    rank 0                 F0 · send · F1 · send · ...
    rank 1                 receive · F0 · receive · B0 · ...

A rank issues what is its own in this order, and waits only for transfers that it has issued: where it reads
one, or where too many of its sends are under way. So no rank waits in a circle, also if a send is over only
when it is received: of all that wait, let one wait for the transfer that is first in the order. The other end
has not issued it, so it waits for an earlier one.
"""

from collections.abc import Iterable
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


Action = Computation | Transfer


def of_rank(order: Iterable[Action], rank: int) -> list[Action]:
    """The total order, restricted to what one rank takes part in."""
    return [
        one
        for one in order
        if (rank == one.rank if isinstance(one, Computation) else rank in (one.source, one.target))
    ]
