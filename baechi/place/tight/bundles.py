"""Bundles: neighbouring groups that an integer program places as one, to limit its variables."""

from collections.abc import Sequence

from baechi.place.problem import ANYWHERE, Problem
from baechi.place.tight.least_bytes import LeastBytes


class Bundles:
    """Groups in bundles, in topological order.

    Args:
        problem: what is to be placed.
        least: by group, the bytes that it takes.
        most: the number of bundles to aim at. A bundle ends when it has its share of bytes, and where pins
            differ, so there may be a few more.

    Attributes:
        of_group: by group, its bundle.
        of_layer: by layer, its bundle.
        pins: by bundle, its device or `ANYWHERE`.
        least: by bundle, the bytes that it takes.
        single: whether each group is a bundle of its own.
    """

    def __init__(self, problem: Problem, least: Sequence[LeastBytes], most: int) -> None:
        self.single = len(least) <= most
        share = sum([part.alone_bytes for part in least]) / most
        self.of_group: list[int] = []
        self.pins: list[int] = []
        self.least: list[LeastBytes] = []
        filled = 0.0
        for part, pin in zip(least, problem.pins, strict=True):
            filled += part.alone_bytes
            if self.single or not self.pins or pin != self.pins[-1] or pin != ANYWHERE or filled > share:
                self.pins.append(pin)
                self.least.append(part)
                filled = part.alone_bytes
            else:
                self.least[-1] = self.least[-1].with_other(part)
            self.of_group.append(len(self.pins) - 1)
        self.of_layer = [self.of_group[group] for group in problem.indexed.group_of]

    def __len__(self) -> int:
        return len(self.pins)
