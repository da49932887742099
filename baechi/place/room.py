"""Memory at a glance: what a search looks at before it tries a move.

Permanent bytes of all groups on a device, and the most that one of them needs on top. Copies from other
devices, and output that waits for its readers, are left to the simulator.
"""

from collections.abc import Sequence

from baechi.place.task import Task


class Room:
    """A placement that changes, and the bytes that it leaves.

    Args:
        task: what is placed.
        device_of: by group, its device.
    """

    def __init__(self, task: Task, device_of: Sequence[int]) -> None:
        self.device_of = list(device_of)
        self._kept_bytes = [part.permanent_bytes for part in task.group_bytes]
        self._top_bytes = [part.total_bytes - part.permanent_bytes for part in task.group_bytes]
        self._free_bytes = list(task.memory_bytes)  # were no group to need anything on top
        for group, device in enumerate(device_of):
            self._free_bytes[device] -= self._kept_bytes[group]
        self._tops_bytes = [self._highest(device) for device in task.devices]

    def takes(self, device: int, come: Sequence[int], go: Sequence[int] = ()) -> bool:
        """Whether a device has room for a change; one that lacks it already may still get emptier.

        Args:
            device: the device.
            come: groups that would come.
            go: groups that would leave.
        """
        more = sum([self._kept_bytes[group] for group in come]) - sum([self._kept_bytes[g] for g in go])
        top = max([self._top_bytes[group] for group in come], default=0)
        old = self._tops_bytes[device]
        return more + max(top, old) <= self._free_bytes[device] or (more <= 0 and top <= old)

    def move(self, group: int, there: int) -> None:
        """Change a group's device.

        Args:
            group: the group.
            there: its next device.
        """
        here = self.device_of[group]
        self.device_of[group] = there
        self._free_bytes[here] += self._kept_bytes[group]
        self._free_bytes[there] -= self._kept_bytes[group]
        self._tops_bytes[there] = max(self._tops_bytes[there], self._top_bytes[group])
        if self._top_bytes[group] == self._tops_bytes[here]:
            self._tops_bytes[here] = self._highest(here)

    def _highest(self, device: int) -> int:
        on = zip(self.device_of, self._top_bytes, strict=True)
        return max([top for other, top in on if other == device], default=0)
