"""What the runs and stages of a pipeline take: seconds of devices and host, transfers, bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from baechi.records.cluster import Cluster
from baechi.records.pipeline import Units
from baechi.simulate.pipeline.counting.again import Piece
from baechi.simulate.pipeline.counting.awaits import Awaits
from baechi.simulate.pipeline.counting.bytes import UnitBytes
from baechi.simulate.pipeline.step_end import Closing


class Send(NamedTuple):
    """A tensor, or a gradient, that goes to another device, once for all that read it there.

    Args:
        source: the device that it leaves; the host's index is that after the last.
        target: the device where it arrives.
        duration_s: how long it travels.
        size_bytes: what travels.
        copy_bytes: the memory that it takes where it arrives.
        readers: the runs (of a gradient: the stages) that wait for it.
        early_s: by reader, what it takes of its device before it comes to the first layer that reads it.
        rest_s: what its maker still takes of the device when it is made; gradients are sent at the end.
        paced_s: from the host's begin of its maker until it is made, if the device waits for the host alone.
    """

    source: int
    target: int
    duration_s: float
    size_bytes: int
    copy_bytes: int
    readers: tuple[int, ...]
    early_s: tuple[float, ...]
    rest_s: float = 0.0
    paced_s: float = 0.0


@dataclass(frozen=True)
class PipelineCosts:
    """What every task takes. Lists are by run in forward, and by stage in backward.

    Args:
        cluster: the devices.
        units: the stages and runs.
        forward_s, backward_s: seconds on the device.
        add_s: seconds of adding gradients to those of the microbatches before.
        host_forward_s, host_backward_s: seconds of the host.
        add_host_s: seconds of the host for these additions.
        paced_forward_s, paced_backward_s: from the host's begin of a task until all of it is issued and over,
            where the device waits for the host alone.
        paced_adding_s: the same of backward, with these additions.
        uploads: by run, what it is the first to need from the host.
        sends: by run, what it makes for other devices.
        returns: by stage, the gradients that it sends.
        awaits: by run, the values for which the host waits in its code.
        forward_after, backward_after: what it follows without a transfer.
        task_s: the part of each task's host time that comes before its first kernel.
        transfer_s: the part of a transfer's host time that comes before it is issued.
        pieces: what runs again in backward on other devices than that of its stage: see `counting.again`.
        handed_on: by piece, what it sends to stages, or to pieces: counted from the number of stages on.
        count_bytes: counts what the units take of memory: once, if it is asked for.
        closing: what follows the tasks.
    """

    cluster: Cluster
    units: Units
    forward_s: list[float]
    backward_s: list[float]
    add_s: list[float]
    host_forward_s: list[float]
    host_backward_s: list[float]
    add_host_s: list[float]
    paced_forward_s: list[float]
    paced_backward_s: list[float]
    paced_adding_s: list[float]
    uploads: list[list[Send]]
    sends: list[list[Send]]
    returns: list[list[Send]]
    awaits: list[Awaits]
    forward_after: list[list[int]]
    backward_after: list[list[int]]
    task_s: float
    transfer_s: float
    pieces: list[Piece]
    handed_on: list[list[Send]]
    count_bytes: Callable[[], UnitBytes]
    closing: Closing

    @property
    def lead_s(self) -> float:
        """What the host does before the first kernel or transfer starts: it is no part of a step."""
        if not self.host_forward_s:
            return 0.0
        before_s = self.task_s + self.cluster.launch_s + (self.transfer_s if self.uploads[0] else 0.0)
        return min(before_s, self.host_forward_s[0])

    @cached_property
    def sends_before_end(self) -> list[list[tuple[Send, bool]]]:
        """By run, what leaves while it still has work, as it is made; with `last_for_readers`."""
        made = [[send for send in sends if send.rest_s] for sends in self.sends]
        return [last_for_readers(sorted(sends, key=lambda send: -send.rest_s)) for sends in made]

    @cached_property
    def sends_at_end(self) -> list[list[tuple[Send, bool]]]:
        """By run, then by stage, what leaves when it is over; with `last_for_readers`."""
        last = [[send for send in sends if not send.rest_s] for sends in self.sends]
        return [last_for_readers(sends) for sends in (*last, *self.returns)]

    @cached_property
    def bytes(self) -> UnitBytes:
        """What the units take of memory. It takes longer to count than all else, and bounds do not ask."""
        return self.count_bytes()


def last_for_readers(sends: Sequence[Send]) -> list[tuple[Send, bool]]:
    """Each with whether the same readers wait for no later one, at the same layers: the last arrives last."""
    keys = [(send.target, send.readers, send.early_s) for send in sends]
    last = {key: number for number, key in enumerate(keys)}
    return [(send, last[key] == number) for number, (send, key) in enumerate(zip(sends, keys, strict=True))]
