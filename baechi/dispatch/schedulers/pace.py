"""How long a target takes for a chunk, as a function of its items."""

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass
class Pace:
    """Seconds by items: straight lines between known points, and beyond them.

    Args:
        known: by number of items, seconds; estimated, or measured where there is no estimate.
        measured: whether the points are what was measured.
    """

    known: dict[int, float] = field(default_factory=dict)
    measured: bool = False
    _expected_s: float = 0.0
    _taken_s: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.known)

    def seconds(self, items: int) -> float:
        """Seconds of a chunk."""
        scale = self._taken_s / self._expected_s if self._expected_s > 0 else 1.0
        return scale * self._line(items)

    def items_in(self, seconds: float, most: int) -> int:
        """The most items that a chunk of so many seconds can have."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.seconds(middle) <= seconds else (low, middle - 1)
        return low

    def learn(self, items: int, taken_s: float) -> None:
        """Take in what a chunk took."""
        if self.known and not self.measured:  # an estimate keeps its form, and is scaled
            self._expected_s += self._line(items)
            self._taken_s += taken_s
        else:
            self.measured = True
            before = self.known.get(items)
            self.known[items] = taken_s if before is None else (before + taken_s) / 2

    def _line(self, items: int) -> float:
        sizes = sorted(self.known)
        if len(sizes) == 1:
            return self.known[sizes[0]] * items / max(1, sizes[0])
        right = min(max(bisect_left(sizes, items), 1), len(sizes) - 1)
        first, second = sizes[right - 1], sizes[right]
        slope = max(0.0, (self.known[second] - self.known[first]) / (second - first))
        return max(0.0, self.known[first] + slope * (items - first))
