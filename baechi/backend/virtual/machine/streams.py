"""Streams and events of emulated devices, with a vector clock each.

A vector clock says how much of every other stream is known to be over:

    compute  [a]--[b]--(record e)--[c]           c may run before d
                          \\
    tx                     `(wait e)--[d]        d comes after b: tx has seen compute up to b

After L. Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System" (1978) and
F. Mattern, "Virtual Time and Global States of Distributed Systems" (1989). An access is one number
on one stream (an epoch), as in C. Flanagan, S. Freund, "FastTrack" (PLDI 2009).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baechi.cost.clock import Job

Seen = dict[int, int]
_numbers = count()


class Host:
    """A thread of the host that issues work: its clock, and what it has waited for.

    Args:
        now_s: its logical clock.
        seen: by stream, up to where it is known to be over.

    Attributes:
        worked_s: for how long it has worked, in a backward.
    """

    __slots__ = ("now_s", "seen", "version", "worked_s")

    def __init__(self, now_s: float = 0.0, seen: Mapping[int, int] | None = None) -> None:
        self.now_s = now_s
        self.seen: Seen = dict(seen or {})
        self.version = 0
        self.worked_s = 0.0

    def work(self, taken_s: float) -> None:
        """Do something that takes a while."""
        self.now_s += taken_s
        self.worked_s += taken_s

    def learn(self, seen: Mapping[int, int]) -> None:
        """Merge another vector clock into this one."""
        _join(self.seen, seen)
        self.version += 1


class Stream:
    """A queue of work on a device: what is put on it runs in order.

    Args:
        device: the device's place in the cluster.
        name: such as `"cpu:0/compute"`.
    """

    __slots__ = (
        "__weakref__",
        "_host",
        "_version",
        "awaited",
        "device",
        "epoch",
        "last",
        "name",
        "number",
        "seen",
    )

    def __init__(self, device: int, name: str) -> None:
        self.number = next(_numbers)
        self.device = device
        self.name = name
        self.epoch = 0
        self.seen: Seen = {}
        self.last: Job | None = None
        self.awaited: list[Job] = []
        self._host: Host | None = None
        self._version = -1

    def __repr__(self) -> str:
        return self.name

    def advance(self, host: Host) -> int:
        """Issue one job on it, after all that the host has waited for; returns the job's epoch."""
        self.follow(host)
        self.epoch += 1
        return self.epoch

    def follow(self, host: Host) -> None:
        """Order all work issued from now on after everything that the host has waited for."""
        if self._host is not host or self._version != host.version:  # else it was merged before
            _join(self.seen, host.seen)
            self._host, self._version = host, host.version

    def knows(self, access: "Access") -> bool:
        """Whether an access is over before the next work issued on this stream."""
        return access.stream is self or access.epoch <= self.seen.get(access.stream.number, 0)

    def record(self) -> "Event":
        """An event that comes after all that is on the stream now."""
        last = () if self.last is None else (self.last,)
        return Event({**self.seen, self.number: self.epoch}, (*last, *self.awaited))

    def wait(self, event: "Event") -> None:
        """Order all work issued on this stream from now on after the event."""
        _join(self.seen, event.seen)
        # a job already waits for the one before it on its stream
        self.awaited += [job for job in event.jobs if job is not self.last]


@dataclass(frozen=True, slots=True)
class Event:
    """A point on a stream.

    Args:
        seen: the vector clock there.
        jobs: what must be over for the event to have happened.
    """

    seen: Mapping[int, int]
    jobs: "tuple[Job, ...]"


class Access:
    """Something that read or wrote memory.

    Args:
        stream: where it ran.
        epoch: its number there.
        what: the operator.
        layer: the layer it belongs to; empty if none is known.
    """

    __slots__ = ("epoch", "layer", "stream", "what")

    def __init__(self, stream: Stream, epoch: int, what: str, layer: str) -> None:
        self.stream = stream
        self.epoch = epoch
        self.what = what
        self.layer = layer

    def __str__(self) -> str:
        owner = f" of layer {self.layer}" if self.layer else ""
        return f"{self.what}{owner} on stream {self.stream.name}"


def _join(mine: Seen, others: Mapping[int, int]) -> None:
    for number, epoch in others.items():
        if epoch > mine.get(number, 0):
            mine[number] = epoch
