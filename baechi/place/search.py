"""Local search: small changes to a placement, kept where the simulated step gets shorter.

move    a group goes to a device where one of its neighbours in the graph lies
swap    two groups that lie on different devices change places
shift   a stretch of what a device runs in a row goes to another device
turn    a layer runs earlier or later, as far as those allow that it depends on, or that depend on it

An order that is good stays with the placement that is changed a little. What is tried next is drawn
with a fixed seed, and effort is counted in simulations: the same input gives the same plan everywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from baechi.place.bottom_level import bottom_level_order
from baechi.place.task import ANYWHERE, Task

Rehearsal = Callable[[Sequence[int], Sequence[int]], tuple[float, list[int]]]
"""Predicts the step of a placement: seconds, and the peak of each device. By layer: device, place."""

_SEED = 0

_CHANCES = ("move", "move", "move", "swap", "shift", "shift", "turn", "turn")


@dataclass(frozen=True, slots=True)
class Found:
    """A placement and what it takes.

    Args:
        device_of: by group, its device.
        order: layers.
        step_s: the predicted step.
        peak_bytes: by device.
    """

    device_of: tuple[int, ...]
    order: tuple[int, ...]
    step_s: float
    peak_bytes: tuple[int, ...]


class Search:
    """A search from one placement.

    Args:
        task: what is placed.
        rehearse: predicts a step.
        start: where to begin.
    """

    def __init__(self, task: Task, rehearse: Rehearsal, start: Found) -> None:
        self.best = start
        self.tried = 0
        self._task = task
        self._rehearse = rehearse
        self._chance = Random(_SEED)
        self._near = _neighbours(task)
        indexed = task.indexed
        self._before = [
            {indexed.source[tensor] for tensor in reads} | set(before)
            for reads, before in zip(indexed.reads, indexed.before, strict=True)
        ]

    def run(self, most: int, patience: int, enough_s: float = 0.0) -> Found:
        """Search.

        Args:
            most: simulations at most.
            patience: stop after so many in a row that gained nothing.
            enough_s: stop at a step as short as this: no step can be shorter.

        Returns:
            The best placement.
        """
        if not self._near or len(self._task.cluster) < 2:
            return self.best
        idle = 0
        while self.tried < most and idle < patience and self.best.step_s > enough_s:
            idle += 1
            changed = self._changed()
            if changed is None:
                continue
            self.tried += 1
            found = evaluate(self._task, self._rehearse, *changed)
            if found is None or found.step_s > self.best.step_s:
                continue
            if found.step_s < self.best.step_s * (1 - 1e-9):
                idle = 0
            self.best = found  # one that is as good may lead on
        return self.best

    def _changed(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """Another placement and order; None if the draw changes nothing, or a pin forbids it."""
        change = self._chance.choice(_CHANCES)
        if change == "turn":
            order = self._turned()
            return (self.best.device_of, order) if order is not None else None
        changed = {"move": self._move, "swap": self._swap, "shift": self._shift}[change]
        device_of = changed(list(self.best.device_of))
        if tuple(device_of) == self.best.device_of:
            return None
        pins = self._task.pins
        if any(pin not in (ANYWHERE, device) for pin, device in zip(pins, device_of, strict=True)):
            return None
        return device_of, self.best.order

    def _turned(self) -> list[int] | None:
        order = list(self.best.order)
        place = self._chance.randrange(len(order))
        layer = order[place]
        low = high = place
        while low > 0 and order[low - 1] not in self._before[layer]:
            low -= 1
        while high < len(order) - 1 and layer not in self._before[order[high + 1]]:
            high += 1
        target = self._chance.randint(low, high)
        if target == place:
            return None
        order.insert(target, order.pop(place))
        return order

    def _move(self, device_of: list[int]) -> list[int]:
        group = self._chance.randrange(len(device_of))
        there = [device_of[near] for near in self._near[group] if device_of[near] != device_of[group]]
        others = sorted(set(there)) or [d for d in self._task.devices if d != device_of[group]]
        device_of[group] = self._chance.choice(others)
        return device_of

    def _swap(self, device_of: list[int]) -> list[int]:
        one, other = self._chance.randrange(len(device_of)), self._chance.randrange(len(device_of))
        device_of[one], device_of[other] = device_of[other], device_of[one]
        return device_of

    def _shift(self, device_of: list[int]) -> list[int]:
        """A stretch of the order that lies on one device goes to another one."""
        group_of = self._task.indexed.group_of
        order = self.best.order
        begin = self._chance.randrange(len(order))
        here = device_of[group_of[order[begin]]]
        row = [group_of[layer] for layer in order[begin:] if device_of[group_of[layer]] == here]
        length = self._chance.randint(1, max(1, len(row)))
        target = self._chance.choice([device for device in self._task.devices if device != here])
        for group in row[:length]:
            device_of[group] = target
        return device_of


def evaluate(
    task: Task, rehearse: Rehearsal, device_of: Sequence[int], order: Sequence[int] | None = None
) -> Found | None:
    """What a placement takes.

    Args:
        task: what is placed.
        rehearse: predicts a step.
        device_of: by group, its device.
        order: layers; by bottom level unless given.

    Returns:
        None if it needs more memory than a device has.
    """
    order = bottom_level_order(task, device_of) if order is None else order
    place = [0] * len(order)
    for index, layer in enumerate(order):
        place[layer] = index
    step_s, peaks = rehearse([device_of[group] for group in task.indexed.group_of], place)
    if any(peak > limit for peak, limit in zip(peaks, task.memory_bytes, strict=True)):
        return None
    return Found(tuple(device_of), tuple(order), step_s, tuple(peaks))


def _neighbours(task: Task) -> list[list[int]]:
    """By group, the groups that it exchanges tensors with."""
    indexed = task.indexed
    near: list[dict[int, None]] = [{} for _ in indexed.members]
    for tensor, maker in enumerate(indexed.source):
        for reader in indexed.consumers[tensor] if maker >= 0 else ():
            one, other = indexed.group_of[maker], indexed.group_of[reader]
            if one != other:
                near[one][other] = near[other][one] = None
    return [list(groups) for groups in near]
