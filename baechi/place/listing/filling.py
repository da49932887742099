"""Fill one device after the other up to a cap, without going back.

`Filling` asks a ledger for each layer. If memory is not short, every answer is known beforehand: then
`filled` looks at the sums alone, and returns the same devices in a tenth of the time.
"""

from collections.abc import Sequence
from functools import partial

from baechi.cost.indexed import FROM_HOST
from baechi.cost.memory import update_peak_bytes
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


def filled(task: Task, cap_bytes: float) -> list[int] | None:
    """Fill one device after the other up to a cap, if memory cannot become short.

    Args:
        task: what is to be placed.
        cap_bytes: the cap of every device on the summed bytes of its groups, each counted as if alone there.

    Returns:
        By group, its device: the choice of a walk with `Filling`. None if a group is pinned or left over,
        or if memory would be short with all tensors of a device alive at once.
    """
    if any([pin != ANYWHERE for pin in task.pins]):
        return None
    device_of: list[int] = []
    device, left = 0, cap_bytes
    for group in task.group_bytes:
        while group.total_bytes > left:
            device, left = device + 1, cap_bytes
            if device == len(task.devices):
                return None
        left -= group.total_bytes
        device_of.append(device)
    highest = _highest_bytes(task, device_of)
    short = any([peak > memory for peak, memory in zip(highest, task.memory_bytes, strict=True)])
    return None if short else device_of


def _highest_bytes(task: Task, device_of: Sequence[int]) -> list[int]:
    """By device, an upper bound on its bytes: as if all tensors that ever lie there were alive at once."""
    indexed, ends = task.indexed, len(task.cluster) + 1
    where = [device_of[group] for group in indexed.group_of]
    kept, always, tops, updates, largest = ([0] * ends for _ in range(5))
    for device, part in zip(where, task.footprints, strict=True):
        resident, saved, output, temp, upstream, update, most, gradient = part
        less = saved if saved < gradient else gradient
        always[device] += resident
        kept[device] += resident + saved + output - less
        if temp + upstream + less > tops[device]:
            tops[device] = temp + upstream + less
        updates[device] += update
        if most > largest[device]:
            largest[device] = most
    for maker, size, consumers in zip(indexed.source, indexed.size_bytes, indexed.consumers, strict=True):
        home = task.host if maker == FROM_HOST else where[maker]
        for there in {where[reader] for reader in consumers}:
            if there != home:  # a copy there, and in training its gradient here
                kept[there] += size
                kept[home] += size
    stepping = [a + update_peak_bytes(*pair) for a, *pair in zip(always, updates, largest, strict=True)]
    return [max(k + top, s) for k, top, s in zip(kept, tops, stepping, strict=True)][: task.host]
