"""Fill one device after the other up to a cap, without going back."""

from collections.abc import Sequence
from functools import partial

from baechi.place.ledger import Ledger
from baechi.place.listing.walk import best_fit
from baechi.place.task import ANYWHERE, Task


class Filling:
    """Chooses the device of the next layer.

    Args:
        task: what is to be placed.
        ledger: memory; groups that it has placed count against the caps.
        caps_bytes: by device, the cap on the summed bytes of its groups, each counted as if alone there.
    """

    def __init__(self, task: Task, ledger: Ledger, caps_bytes: Sequence[float]) -> None:
        self._task = task
        self._ledger = ledger
        self._left_bytes = list(caps_bytes)
        self._device = 0
        for group, device in enumerate(ledger.device_of):
            if device != ANYWHERE:
                self._left_bytes[device] -= task.group_bytes[group].total_bytes

    def choose(self, layer: int) -> int | None:
        """The device of a layer whose group is not placed.

        Args:
            layer: the next layer.

        Returns:
            The device being filled, else the next one where it fits. If there is no next one, the device
            that would have the least memory left. None if it fits nowhere.
        """
        size = self._task.group_bytes[self._task.indexed.group_of[layer]].total_bytes
        while self._device < len(self._left_bytes):
            fits = size <= self._left_bytes[self._device]
            if fits and self._ledger.short_bytes(layer, self._device) <= 0:
                self._left_bytes[self._device] -= size
                return self._device
            self._device += 1
        return best_fit(self._task, partial(self._ledger.short_bytes, layer))
