"""The issuers of work on emulated devices: the host's threads, and those of backward.

Backward has one issuing clock for each device, as CUDA's engine has one thread for each. A node is
issued when its inputs have been; when backward is over, the thread that called it goes on after the
last of them.

Where devices belong to ranks, a thread stands for one of each rank: each has a clock of its own, and none
waits for another.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

import torch

from baechi.backend.virtual.machine.record import StepRecord
from baechi.backend.virtual.machine.streams import Host, Stream
from baechi.torchlib.host_work import BackwardNodes
from baechi.torchlib.private.autograd import (
    LEAF_NUMBER,
    current_autograd_node,
    current_graph_task_id,
    next_sequence_number,
    sequence_number,
)

FORWARD = -1
_OWNERS_KEPT = 100_000


@dataclass(slots=True)
class _Backward:
    """One backward that this thread is in: graph tasks nest in reentrant checkpoints."""

    job: int
    starts: list[Host]  # by rank
    hosts: dict[int, Host] = field(default_factory=dict)
    owed_s: float = 0.0  # what torch did here for the next kernel, on whatever device that runs
    python_s: float = 0.0  # when the thread that runs Python is done with it: one does at a time
    again: Host | None = None  # of code that runs again in it, on whatever devices
    left: Host | None = None  # of such code that is over, until the thread that ran it goes on


@dataclass(slots=True)
class Worked:
    """For how long the host has worked for steps. Of backward's threads, which work at once, the busiest."""

    by_rank: defaultdict[int, float] = field(default_factory=partial(defaultdict, float))

    @property
    def seconds(self) -> float:
        """That of the busiest rank."""
        return max(self.by_rank.values(), default=0.0)


class Thread:
    """A thread that issues work.

    Args:
        host: its clock, as it starts.
        worked: by all threads together.
        ranks: by device, its rank; empty where one host has all of them.

    Attributes:
        hosts: its clocks, by rank.
        rank: whose part of the program runs now.
    """

    def __init__(self, host: Host, worked: Worked | None = None, ranks: Sequence[int] = ()) -> None:
        self._ranks, self.rank = ranks, 0
        self.hosts = [host, *[Host(host.now_s, host.seen) for _ in range(max(ranks, default=0))]]
        self._worked = worked or Worked()
        self.layer = ""
        self.depth = 0
        self.suspended = 0
        self.owed_s = 0.0
        self.streams: dict[int, Stream] = {}
        self._log: Thread | None = None  # another thread that made the nodes whose backward runs here
        self._backwards: list[_Backward] = []
        self._task = FORWARD
        self._nodes = BackwardNodes()
        # by sequence number: autograd nodes made from there on belong to a layer of a step. The records
        # are weak references: a record is as large as its step, and the caller may have dropped it
        self._starts: deque[int] = deque(maxlen=_OWNERS_KEPT)
        self._owners: deque[tuple[str, ReferenceType[StepRecord]]] = deque(maxlen=_OWNERS_KEPT)

    @property
    def host(self) -> Host:
        """The clock of what runs now."""
        return self.hosts[self.rank]

    def rank_of(self, device: int) -> int:
        """Who issues for a device."""
        return self._ranks[device] if device < len(self._ranks) else self.rank

    def meet(self) -> None:
        """The hosts of all ranks wait for each other."""
        now_s = max([host.now_s for host in self.hosts])
        for host in self.hosts:
            host.now_s = now_s

    @property
    def in_backward(self) -> bool:
        """Whether a backward is running in this thread."""
        return current_graph_task_id() != FORWARD

    def issuer(self, device: int, *, works: bool = False) -> Host:
        """The clock of the thread that issues the next job for a device."""
        backward = self._innermost()
        if backward is None:
            return self.hosts[self.rank_of(device)]
        if backward.again is not None:
            return backward.again
        host = backward.hosts.get(device)
        if host is None:
            start = backward.starts[self.rank_of(device)]
            host = backward.hosts[device] = Host(start.now_s, start.seen)
        if works:
            if backward.left is not None:
                host.now_s = max(host.now_s, backward.left.now_s)
                host.learn(backward.left.seen)
                backward.left = None
            host.work(backward.owed_s)
            backward.owed_s = 0.0
        return host

    def work(self, host: Host, taken_s: float) -> None:
        """Let a clock of this thread go on by what it does."""
        host.work(taken_s)
        if self.depth:
            for rank, own in enumerate(self.hosts):
                if own is host:
                    self._worked.by_rank[rank] += taken_s

    def take(self, taken_s: float, device: int | None = None) -> None:
        """Do what torch does before the next kernel."""
        backward = self._innermost()
        if backward is None:
            self.work(self.host, taken_s)
        elif backward.again is not None:
            backward.again.work(taken_s)
        elif device is not None:
            self.issuer(device, works=True).work(taken_s)
        else:
            backward.owed_s += taken_s

    def enters_node(self) -> bool:
        """Whether what runs now is the first operator of an autograd node, in backward."""
        return self._nodes.enters()

    @contextmanager
    def running_again(self) -> Iterator[None]:
        """While code runs again in backward. One thread issues all of it, on whatever devices.

        Its kernels read no gradient, but a gradient began it. One such region runs at a time, so all that was
        issued before it counts. Then the thread goes on with the node for which the code ran again.
        """
        backward = self._innermost()
        if backward is None or backward.again is not None:
            yield
            return
        latest = self._latest(self.rank)
        backward.again, backward.left = Host(latest.now_s, latest.seen), None
        try:
            yield
        finally:
            start = backward.starts[self.rank]
            start.worked_s += backward.again.worked_s if backward.again is not None else 0.0
            backward.again, backward.left = None, backward.again

    def _innermost(self) -> _Backward | None:
        """The backward that this thread is in now."""
        job = current_graph_task_id()
        if job != self._task:
            self._enter(job)
        return None if job == FORWARD else self._backwards[-1]

    def spend(self, taken_s: float, device: int, *, computing: bool) -> None:
        """Do work of the runtime's own."""
        if computing:
            self.owed_s = taken_s
            return
        host, backward = self.issuer(device), self._innermost()
        if backward is not None and backward.again is None:
            host.now_s = max(host.now_s, backward.python_s)
        self.work(host, taken_s)
        if backward is not None:
            backward.python_s = host.now_s

    def pay(self) -> float:
        """What the next kernel takes of the host besides its issue, once."""
        owed_s, self.owed_s = self.owed_s, 0.0
        return owed_s

    def enter_layer(self, layer: str, record: StepRecord) -> str:
        """What is issued from now on belongs to a layer; returns which it was before."""
        before, self.layer = self.layer, layer
        if torch.is_grad_enabled():
            self._starts.append(next_sequence_number())
            self._owners.append((layer, ref(record)))
        return before

    def owner(self) -> tuple[str, StepRecord | None]:
        """The layer whose backward is running, and the record of its step, if they are known.

        A step whose record is gone has an empty one: its work is not another step's.
        """
        node: Any = current_autograd_node()
        number = sequence_number(node) if node is not None else LEAF_NUMBER
        if number >= LEAF_NUMBER:
            return self.layer, None
        log = self._log or self
        place = bisect_right(log._starts, number) - 1
        if place < 0:
            return "", None
        layer, record = log._owners[place]
        return layer, record() or StepRecord((), 0.0)

    @contextmanager
    def nodes_of(self, other: "Thread") -> Iterator[None]:
        """While this thread runs the backward of nodes that another thread made."""
        before, self._log = self._log, other
        try:
            yield
        finally:
            self._log = before

    def _enter(self, job: int) -> None:
        """Note that the backward changed. One that ended passes its clocks to the backward around it."""
        while self._backwards and self._backwards[-1].job != job:
            if job > self._backwards[-1].job:
                break  # ids grow: a larger one began inside this backward
            self._leave(self._backwards.pop())
        if job != FORWARD and not (self._backwards and self._backwards[-1].job == job):
            latest = list(map(self._latest, range(len(self.hosts))))
            self._backwards.append(_Backward(job, [Host(one.now_s, one.seen) for one in latest]))
        self._task = job

    def _leave(self, ended: _Backward) -> None:
        """Pass the clocks of a backward that ended to what is around it, rank by rank."""
        around = self._backwards[-1] if self._backwards else None
        for rank, outer in enumerate(around.starts if around is not None else self.hosts):
            hosts, owed_s = self._hosts_of(ended, rank), ended.owed_s if rank == self.rank else 0.0
            worked_s = ended.starts[rank].worked_s + owed_s
            worked_s += max([host.worked_s for host in hosts if host is not ended.left], default=0.0)
            if around is not None:
                outer.worked_s += worked_s
            else:
                self._worked.by_rank[rank] += worked_s
            for host in hosts:
                outer.now_s = max(outer.now_s, host.now_s)
                outer.learn(host.seen)
            outer.now_s += owed_s
            for host in self._hosts_of(around, rank) if around is not None else ():
                host.now_s = max(host.now_s, outer.now_s)
                host.learn(outer.seen)

    def _hosts_of(self, backward: _Backward, rank: int) -> list[Host]:
        """Of the clocks in a backward, those of a rank."""
        found = [host for device, host in backward.hosts.items() if self.rank_of(device) == rank]
        again = (backward.again, backward.left) if rank == self.rank else ()
        return [*found, *[host for host in again if host is not None]]

    def _latest(self, rank: int) -> Host:
        inside = [host for backward in self._backwards for host in self._hosts_of(backward, rank)]
        return max([self.hosts[rank], *inside], key=lambda host: host.now_s)
