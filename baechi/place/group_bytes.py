"""What the layers that share a device take of it together."""

from collections.abc import Sequence
from typing import NamedTuple

from baechi.cost.memory import Footprint, update_peak_bytes


class GroupBytes(NamedTuple):
    """What a group takes of its device, without what it receives from others.

    Args:
        permanent_bytes: of all its layers together.
        forward_bytes: the most that comes on top while one of them runs forward.
        final_bytes: what they return from the model, there while backward runs.
        backward_bytes: the most that comes on top while one of them runs backward.
        resident_bytes: what is there when the optimizer steps.
        update_bytes: of all its layers together, when it does.
        largest_update_bytes: the most of one weight.
        total_bytes: what the group takes alone on a device.
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
        """What a group takes.

        Args:
            parts: of its layers.
            final_bytes: what they return from the model.
        """
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
        """What a single layer takes: as most groups are, so without sums."""
        resident, saved, output, temp, upstream, update, largest, gradient, _ = part
        permanent, forward, backward = resident + saved, output + temp, upstream + temp
        if gradient:
            less = min(saved, gradient)
            permanent, backward = permanent - less, backward + less
        total = permanent + max(forward, final_bytes + backward)
        if update:
            total = max(total, resident + update_peak_bytes(update, largest))
        return cls(permanent, forward, final_bytes, backward, resident, update, largest, total)
