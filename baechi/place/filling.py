"""One device after the other, each filled up to a cap, never back."""

from baechi.place.ledger import Ledger
from baechi.place.task import ANYWHERE, Task
from baechi.place.walk import best_fit


class Filling:
    """Where the next layer goes.

    Args:
        task: what is to be placed.
        ledger: memory; what it has placed counts against the cap.
        cap_bytes: how much of a device's memory to fill, whatever the device has.
    """

    def __init__(self, task: Task, ledger: Ledger, cap_bytes: float) -> None:
        self._task = task
        self._ledger = ledger
        self._cap_bytes = cap_bytes
        self._device = 0
        self._permanent_bytes = [0] * len(task.devices)
        self._temporary_bytes = [0] * len(task.devices)
        for group, device in enumerate(ledger.device_of):
            if device != ANYWHERE:
                self._count(group, device)

    def choose(self, layer: int) -> int | None:
        """The device of a layer whose group is not placed.

        Args:
            layer: the next layer.

        Returns:
            The device being filled, else the next that it fits on; when there is no next, the one
            of all devices that would have the least left; None if it fits nowhere.
        """
        group = self._task.indexed.group_of[layer]
        while self._device < len(self._task.devices):
            if self._within_cap(group) and self._ledger.short_bytes(layer, self._device) <= 0:
                self._count(group, self._device)
                return self._device
            self._device += 1
        return best_fit(self._task, lambda device: self._ledger.short_bytes(layer, device))

    def _within_cap(self, group: int) -> bool:
        part = self._task.group_bytes[group]
        permanent = self._permanent_bytes[self._device] + part.permanent_bytes
        temporary = max(self._temporary_bytes[self._device], part.total_bytes - part.permanent_bytes)
        return permanent + temporary <= self._cap_bytes

    def _count(self, group: int, device: int) -> None:
        part = self._task.group_bytes[group]
        self._permanent_bytes[device] += part.permanent_bytes
        temporary = part.total_bytes - part.permanent_bytes
        self._temporary_bytes[device] = max(self._temporary_bytes[device], temporary)
