"""What a scheduler is asked, and what it is told."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from baechi.dispatch.schedulers.targets import Target
from baechi.errors import BaechiError


@dataclass(frozen=True)
class Share:
    """What a target takes next.

    Args:
        target: its name.
        items: how many items (rows, or tiles) of what is left.
    """

    target: str
    items: int


@dataclass(frozen=True)
class Left:
    """What is left of an input.

    Args:
        items: how many items no target has taken.
        total: how many the input has.
        most: how many a chunk may have at most; None if that is the scheduler's to say.
        now_s: seconds on the clock by which chunks are timed.
    """

    items: int
    total: int
    most: int | None = None
    now_s: float = 0.0


class AbstractScheduler(ABC):
    """Gives chunks to targets, and counts what is in flight.

    It is asked with `schedule` and told with `completed`; both count rows, or tiles, as *items*. It keeps no
    thread and no clock, so one scheduler serves one call after another, and its tests need no devices.

    Args:
        targets: where the replicas lie.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = tuple(targets)
        self.load: dict[str, int] = {target.name: 0 for target in self.targets}
        """By target, the items in flight."""
        self.chunks: dict[str, int] = dict(self.load)
        """By target, the chunks in flight."""

    def schedule(self, left: Left) -> Share | None:
        """Give the next chunk to a target; its items are in flight from now on.

        Args:
            left: what is left.

        Returns:
            The target and its items; None if no target takes one before another chunk is complete.
        """
        share = self._choose(left)
        if share is not None:
            self.load[share.target] += share.items
            self.chunks[share.target] += 1
        return share

    def completed(self, target: str, items: int, *, taken_s: float | None = None, now_s: float = 0.0) -> None:
        """Note that a chunk is complete, or has failed.

        Args:
            target: the target that had it.
            items: its items, as `schedule` said.
            taken_s: seconds that the target took; None if it failed.
            now_s: seconds on the clock.

        Raises:
            BaechiError: there is no such target, or it has not so many items in flight.
        """
        if target not in self.load:
            raise BaechiError(f"there is no target {target!r}: there are {', '.join(self.load)}")
        if items > self.load[target] or not self.chunks[target]:
            raise BaechiError(f"{target} completes {items} items and has {self.load[target]} in flight")
        self.load[target] -= items
        self.chunks[target] -= 1
        self._learn(target, items, taken_s, now_s)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight."""
        return not any(self.chunks.values())

    def reset(self) -> None:
        """Forget what is in flight: a call was given up."""
        for target in self.load:
            self.load[target] = self.chunks[target] = 0

    @property
    def depth(self) -> int:
        """How many chunks may be in flight at once, on all targets together."""
        return len(self.targets)

    @abstractmethod
    def _choose(self, left: Left) -> Share | None:
        """See `schedule`."""

    def _learn(self, target: str, items: int, taken_s: float | None, now_s: float) -> None:
        """See `completed`; most schedulers do not care how long it took."""
        del target, items, taken_s, now_s

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.load)})"


def at_most(items: int, *limits: int | None) -> int:
    """The least of a number of items and some limits."""
    return min([items, *[limit for limit in limits if limit]])


def whole_number(value: object, what: str, least: int) -> int:
    """A number that a scheduler was given, checked."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{what} is {value!r}: it takes a whole number of at least {least}")
    return value
