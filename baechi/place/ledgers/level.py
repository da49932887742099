"""How full a device is along the order of placing, when the past can still rise.

A copy is noticed when a layer that reads it is placed, and was there since its source had run. So
bytes are added from some earlier turn on, and the question is how high the level got since then.
"""

from bisect import bisect_left


class Level:
    """Bytes in use on a device, turn by turn. A turn is the running of a layer, on any device.

    Only turns that stand higher than all later ones are remembered: no other can be the highest
    since any turn, and raising keeps that true.
    """

    __slots__ = ("_heights", "_turns", "now_bytes")

    def __init__(self) -> None:
        self.now_bytes = 0
        self._turns: list[int] = []
        self._heights: list[int] = []

    @property
    def highest_bytes(self) -> int:
        """The most there ever was."""
        return self._heights[0] if self._heights else 0

    def highest_since(self, turn: int) -> int:
        """The most there was in a turn and later.

        Args:
            turn: a turn.
        """
        first = bisect_left(self._turns, turn)
        return self._heights[first] if first < len(self._turns) else self.now_bytes

    def mark(self, turn: int, more_bytes: int) -> None:
        """Note how much is in use in the next turn.

        Args:
            turn: a turn later than all before.
            more_bytes: what it takes on top of what is there now.
        """
        height = self.now_bytes + more_bytes
        while self._heights and self._heights[-1] <= height:
            self._heights.pop()
            self._turns.pop()
        self._heights.append(height)
        self._turns.append(turn)

    def raise_since(self, turn: int, more_bytes: int) -> None:
        """Add what was there since a turn, and still is.

        Args:
            turn: the first turn in which it was there.
            more_bytes: how much.
        """
        self.now_bytes += more_bytes
        first = bisect_left(self._turns, turn)
        for later in range(first, len(self._heights)):
            self._heights[later] += more_bytes
        hidden = first
        while 0 < hidden and first < len(self._heights) and self._heights[hidden - 1] <= self._heights[first]:
            hidden -= 1
        del self._heights[hidden:first], self._turns[hidden:first]
