"""Which gradients are there while backward runs, and which of them are one tensor.

A node of autograd that computes nothing (an addition's, a view's) hands on the gradient that it got, or
parts of it (where tensors were joined), and then all of it stays until the last part goes:

    x ──┬── f ──┐            gradient of the sum: one tensor, held twice until f's backward ran,
        └────── + ── sum     then added to that of f: a third one, both others go
"""

from dataclasses import dataclass

from baechi.simulate.memory.use import OVER, Use


@dataclass
class Gradient:
    """A tensor that is a gradient, or several.

    Args:
        size_bytes: its size.
        use: when streams other than its device's are through with it, if there are any.
        holders: of how many tensors it is the gradient.
    """

    size_bytes: int
    use: Use = OVER
    holders: int = 0

    def read_beside(self, other: "Gradient") -> None:
        """One kernel reads both: a stream that uses the one late is late with the other, too."""
        both = self.use.beside(other.use)
        self.use, other.use = [both if one.is_shared else OVER for one in (self, other)]

    @property
    def is_shared(self) -> bool:
        """Whether streams other than its device's use it."""
        return self.use != OVER


class Gradients:
    """The gradients that are there, by tensor (or place among what the model returns) and device."""

    def __init__(self) -> None:
        self._there: dict[tuple[int, int], Gradient] = {}

    def get(self, tensor: int, device: int) -> Gradient | None:
        """The gradient of a tensor, if there is one on a device.

        Args:
            tensor: the tensor.
            device: the device.
        """
        return self._there.get((tensor, device))

    def put(self, tensor: int, device: int, gradient: Gradient) -> Gradient | None:
        """Note the gradient of a tensor.

        Args:
            tensor: the tensor.
            device: the device.
            gradient: its gradient from now on.

        Returns:
            The one that was there so far, if that is nobody's any more.
        """
        gradient.holders += 1
        before = self.take(tensor, device)
        self._there[tensor, device] = gradient
        return before

    def take(self, tensor: int, device: int) -> Gradient | None:
        """Forget the gradient of a tensor.

        Args:
            tensor: the tensor.
            device: the device.

        Returns:
            What was there, if it is nobody's any more.
        """
        gradient = self._there.pop((tensor, device), None)
        if gradient is None:
            return None
        gradient.holders -= 1
        return None if gradient.holders else gradient
