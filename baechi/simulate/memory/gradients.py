"""Which gradients are alive while backward runs, and which of them are one tensor.

An autograd node that computes nothing (of an addition, a view) passes on the gradient that it got, or
slices of it (of a concatenation). Then the whole gradient lives until its last slice is released:

    x ──┬── f ──┐            the gradient of the sum is one tensor, held twice until f's backward ran;
        └────── + ── sum     its sum with f's gradient is a third tensor, and both others are freed
"""

from dataclasses import dataclass

from baechi.simulate.memory.event_memory import OVER


@dataclass
class Gradient:
    """A tensor that is the gradient of one tensor, or of several.

    Args:
        size_bytes: its size.
        until_s: when other devices' streams and copy streams have finished with it, if they use it.
        holders: of how many tensors it is the gradient.
        expanded_bytes: how large its largest view is, if that repeats it.
    """

    size_bytes: int
    until_s: float = OVER
    holders: int = 0
    expanded_bytes: int = 0

    def read_beside(self, other: "Gradient") -> None:
        """Note that one kernel reads both: each waits for the streams that use the other."""
        both = max(self.until_s, other.until_s)
        self.until_s, other.until_s = [both if one.is_shared else OVER for one in (self, other)]

    @property
    def seen_bytes(self) -> int:
        """How large it looks."""
        return max(self.size_bytes, self.expanded_bytes)

    @property
    def is_shared(self) -> bool:
        """Whether streams other than its device's use it."""
        return self.until_s != OVER


class Gradients:
    """The live gradients, by tensor (or by position among the model's outputs) and device."""

    def __init__(self) -> None:
        self._there: dict[tuple[int, int], Gradient] = {}

    def get(self, tensor: int, device: int) -> Gradient | None:
        """The gradient of a tensor on a device, if there is one."""
        return self._there.get((tensor, device))

    def put(self, tensor: int, device: int, gradient: Gradient) -> Gradient | None:
        """Set the gradient of a tensor."""
        gradient.holders += 1
        before = self.take(tensor, device)
        self._there[tensor, device] = gradient
        return before

    def take(self, tensor: int, device: int) -> Gradient | None:
        """Forget the gradient of a tensor."""
        gradient = self._there.pop((tensor, device), None)
        if gradient is None:
            return None
        gradient.holders -= 1
        return None if gradient.holders else gradient
