"""The bytes that a group of layers takes on its device."""

from collections.abc import Sequence
from typing import NamedTuple

from baechi.cost.memory import Footprint, update_peak_bytes


class GroupBytes(NamedTuple):
    """The bytes that a group takes on its device, without tensors received from other devices.

    Args:
        permanent_bytes: permanent bytes of all its layers.
        forward_bytes: the most bytes on top of these while one of its layers runs forward.
        final_bytes: model outputs that its layers make, alive while backward runs.
        backward_bytes: the most bytes on top of these while one of its layers runs backward.
        resident_bytes: the bytes alive when the optimizer steps.
        update_bytes: transient bytes of the optimizer's step, for all its weights.
        largest_update_bytes: the most of these for one weight.
        total_bytes: the peak if the group were alone on a device.
    """

    permanent_bytes: int
    forward_bytes: int
    final_bytes: int
    backward_bytes: int
    resident_bytes: int
    update_bytes: int
    largest_update_bytes: int
    total_bytes: int

    @classmethod
    def of(cls, parts: Sequence[Footprint], final_bytes: int) -> "GroupBytes":
        """Count the bytes of a group."""
        if len(parts) == 1:
            return cls._alone(parts[0], final_bytes)
        permanent = forward = backward = resident = update = largest = 0
        for part in parts:
            resident += part.resident_bytes
            permanent += part.permanent_bytes
            forward = max(forward, part.forward_bytes)
            backward = max(backward, part.backward_bytes)
            update += part.update_bytes
            largest = max(largest, part.largest_update_bytes)
        stepping = resident + update_peak_bytes(update, largest)
        total = max(permanent + forward, permanent + final_bytes + backward, stepping)
        return cls(permanent, forward, final_bytes, backward, resident, update, largest, total)

    @classmethod
    def _alone(cls, part: Footprint, final_bytes: int) -> "GroupBytes":
        """Count the bytes of one layer: a fast path, since most groups have one layer."""
        resident, saved, output, temp, upstream, update, largest, gradient = part
        permanent, forward, backward = resident + saved, output + temp, upstream + temp
        if gradient:
            less = min(saved, gradient)
            permanent, backward = permanent - less, backward + less
        total = permanent + max(forward, final_bytes + backward)
        if update:
            total = max(total, resident + update_peak_bytes(update, largest))
        return cls(permanent, forward, final_bytes, backward, resident, update, largest, total)
