"""One device, one chunk after the other."""

from baechi.dispatch.schedulers.abstract import AbstractScheduler, Left, Share, at_most, whole_number
from baechi.dispatch.schedulers.targets import DeviceLike, one_target


class SimpleScheduler(AbstractScheduler):
    """Gives all chunks to one device.

    Args:
        device: its name, a cluster of one device, or a plan over several. A name is not looked up before the
            model is called.
        batch_size: items of a chunk; 0 does not divide the input.
        capacity: items in flight at once; `batch_size` unless given. Twice that lets the next chunk travel to
            the device while one computes.

    Raises:
        ValueError: a number is negative, or the capacity is below the batch size.
    """

    def __init__(
        self, device: DeviceLike = "cpu", batch_size: int = 0, *, capacity: int | None = None
    ) -> None:
        super().__init__([one_target(device)])
        self.batch_size = whole_number(batch_size, "batch_size", 0)
        self.capacity = batch_size if capacity is None else whole_number(capacity, "capacity", 1)
        if self.capacity < batch_size:
            raise ValueError(f"a capacity of {capacity} is below the batch size of {batch_size}")

    @property
    def depth(self) -> int:
        return max(1, self.capacity // self.batch_size) if self.batch_size else 1

    def _choose(self, left: Left) -> Share | None:
        name = self.targets[0].name
        if self.chunks[name] and self.load[name] + self.batch_size > (self.capacity or 0):
            return None
        if self.chunks[name] and not self.batch_size:
            return None
        return Share(name, at_most(left.items, self.batch_size, left.most))
