"""Bytes on a device along the order of placing, when earlier turns can still rise.

A copy is known when a layer that reads it is placed, but it lives since its producer has run. So bytes
are added from an earlier turn on, and the ledger asks for the peak since that turn.
"""

from bisect import bisect_left


class Level:
    """Bytes in use on a device, turn by turn. A turn is the running of a layer, on any device.

    Only turns higher than all later ones are stored: no other turn can be the highest since some turn.
    Raising a suffix of turns keeps that property.
    """

    __slots__ = ("_heights", "_turns", "now_bytes")

    def __init__(self) -> None:
        self.now_bytes = 0
        self._turns: list[int] = []
        self._heights: list[int] = []

    @property
    def highest_bytes(self) -> int:
        """The peak of all turns."""
        return self._heights[0] if self._heights else 0

    def highest_since(self, turn: int) -> int:
        """The peak in a turn and all later ones.

        Args:
            turn: a turn.
        """
        first = bisect_left(self._turns, turn)
        return self._heights[first] if first < len(self._turns) else self.now_bytes

    def mark(self, turn: int, more_bytes: int) -> None:
        """Add the next turn.

        Args:
            turn: a turn later than all before.
            more_bytes: its bytes on top of the live bytes.
        """
        height = self.now_bytes + more_bytes
        while self._heights and self._heights[-1] <= height:
            self._heights.pop()
            self._turns.pop()
        self._heights.append(height)
        self._turns.append(turn)

    def raise_since(self, turn: int, more_bytes: int) -> None:
        """Add bytes that have been live since a turn.

        Args:
            turn: the first turn in which they were live.
            more_bytes: how many.
        """
        self.now_bytes += more_bytes
        first = bisect_left(self._turns, turn)
        for later in range(first, len(self._heights)):
            self._heights[later] += more_bytes
        hidden = first
        while 0 < hidden and first < len(self._heights) and self._heights[hidden - 1] <= self._heights[first]:
            hidden -= 1
        del self._heights[hidden:first], self._turns[hidden:first]
