"""What the ledgers count of one microbatch's step, noted by task."""

from typing import NamedTuple


class Change(NamedTuple):
    """What a task changes on a device.

    Args:
        device: the device.
        rise_bytes: the most that is there beyond what was there.
        net_bytes: what it adds in all, before what comes back late.
        late_bytes: what it releases that its own kernels still use.
        sent_bytes: what it releases that is still on its way, behind its kernels.
    """

    device: int
    rise_bytes: int
    net_bytes: int
    late_bytes: int
    sent_bytes: int


Changes = tuple[Change, ...]


NOW, NEW, LATE, SENT = range(4)
"""What changes at once; a weight's gradient, if it is new; what a task's kernels still use; what is sent."""

KERNEL_S, TRANSFER_S = 1.0, 2.0
"""In a rehearsal everything is issued at 0; kernels are over at the one, transfers at the other."""


class Notes:
    """Notes what ledgers count, by task.

    Attributes:
        task: the task whose changes are counted.
        releasing: the task that is the last to need what autograd kept, and releases it.
    """

    def __init__(self) -> None:
        self.task = self.releasing = ("forward", 0)
        self._found: dict[tuple[str, int], list[tuple[int, int, int]]] = {}

    def issue(self, device: int, size_bytes: int, now_s: float, least_s: float | None = None) -> None:
        self.note(device, size_bytes, NOW)

    def free(self, device: int, size_bytes: int) -> None:
        self.note(device, -size_bytes, NOW)

    def drop(self, device: int, size_bytes: int, until_s: float, now_s: float) -> None:
        kind = SENT if until_s >= TRANSFER_S else LATE if until_s > now_s else NOW
        self.note(device, -size_bytes, kind)

    def release(self, device: int, size_bytes: int, until_s: float, now_s: float) -> None:
        """Count what autograd kept, and gives back in the task that is the last to need it."""
        before, self.task = self.task, self.releasing
        self.drop(device, size_bytes, until_s, now_s)
        self.task = before

    def note(self, device: int, size_bytes: int, kind: int) -> None:
        """Count a change of the task."""
        if size_bytes:
            self._found.setdefault(self.task, []).append((device, size_bytes, kind))

    def left(self, device: int) -> int:
        """The bytes that no task has released."""
        return sum(
            [size_bytes for found in self._found.values() for one, size_bytes, _ in found if one == device]
        )

    def changes(self, task: tuple[str, int], *, new: bool = False) -> Changes:
        """What a task changes, by device."""
        found: dict[int, list[int]] = {}
        for device, size_bytes, kind in self._found.get(task, ()):
            sums = found.setdefault(device, [0, 0, 0, 0])
            if kind in (LATE, SENT):
                sums[kind] -= size_bytes
            elif new or kind == NOW:
                sums[1] += size_bytes
                sums[0] = max(sums[:2])
        return tuple([Change(device, *found[device]) for device in sorted(found)])
