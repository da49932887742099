"""Starts for the search: work spread evenly over the devices at every time, few tensors cut.

    time, were every device there for every layer    |  band 0  |  band 1  |  band 2  |  ...
    work of each device in each band                      about equal
    tensors that have to travel                           as few as possible

One band is a balanced partition with the least cut, whose devices wait for each other; very many bands
are list scheduling. What is best lies between and cannot be known, so several numbers of bands and
prices of travel are tried, each by annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983) of

    sum over bands and devices of  work^2 x speed / even share    +    price x seconds of travel

which the move of one group changes in few terms: a hundred thousand moves take a fraction of a second.
"""

from collections.abc import Iterator, Sequence
from math import exp
from random import Random

from baechi.place.room import Room
from baechi.place.task import ANYWHERE, Task

COUNTS = (2, 4, 8, 12, 16, 24)
"""Numbers of bands."""

PRICES = (0.05, 0.2, 0.8)
"""Prices of a second of travel, in seconds of imbalance."""

_HOTTEST, _COLDEST = 4.0, 0.04
"""The temperature at the beginning and at the end, in mean times of a layer."""

_NEAR = 0.8
"""How often a group goes where a neighbour lies, not anywhere."""


def partitions(task: Task, start: Sequence[int], moves: int, seed: int = 0) -> Iterator[list[int]]:
    """A partition for each number of bands and each price.

    Args:
        task: what is placed.
        start: by group, a device.
        moves: how many are tried for each.
        seed: of what is tried.

    Returns:
        By group, its device.
    """
    if len(task.cluster) < 2 or all(pin != ANYWHERE for pin in task.pins):
        return
    ways = _Ways(task)
    for count in COUNTS:
        bands = _bands(task, count)
        for price in PRICES:
            yield _Spread(task, ways, bands, count, start).anneal(price, moves, Random(seed))


def _bands(task: Task, count: int) -> list[int]:
    """By layer, its band: in the order in which layers could start, all bands of equal work."""
    indexed = task.indexed
    work_s = [min(times) for times in zip(*task.work_s, strict=True)]
    begin_s, end_s = [0.0] * len(indexed), [0.0] * len(indexed)
    for layer in range(len(indexed)):
        makers = [indexed.source[tensor] for tensor in indexed.reads[layer]]
        before_s = [end_s[maker] for maker in (*makers, *indexed.before[layer]) if maker >= 0]
        begin_s[layer] = max(before_s, default=0.0)
        end_s[layer] = begin_s[layer] + work_s[layer]
    total_s, done_s = sum(work_s) or 1.0, 0.0
    bands = [0] * len(indexed)
    for layer in sorted(range(len(indexed)), key=begin_s.__getitem__):
        bands[layer] = min(count - 1, int(done_s / total_s * count))
        done_s += work_s[layer]
    return bands


class _Ways:
    """Who hands what to whom, group by group, and what that takes.

    Args:
        task: what is placed.
    """

    def __init__(self, task: Task) -> None:
        indexed = task.indexed
        self.near = task.neighbours
        self.home = [indexed.group_of[maker] if maker >= 0 else ANYWHERE for maker in indexed.source]
        self.makes: list[list[int]] = [[] for _ in indexed.members]
        self.reads: list[list[int]] = [[] for _ in indexed.members]
        for tensor, home in enumerate(self.home):
            if home == ANYWHERE:
                continue
            self.makes[home].append(tensor)
            for group in sorted({indexed.group_of[reader] for reader in indexed.consumers[tensor]} - {home}):
                self.reads[group].append(tensor)
        self.travel_s = [[_travel_s(task, here, there) for there in task.devices] for here in task.devices]


def _travel_s(task: Task, here: int, there: int) -> list[float]:
    """By tensor; nothing travels from a device to itself."""
    return [0.0 if here == there else task.travel_s(here, there, size) for size in task.indexed.size_bytes]


class _Spread:
    """A partition in the making.

    Args:
        task: what is placed.
        ways: its tensors.
        bands: by layer.
        count: how many bands there are.
        start: by group, a device.
    """

    def __init__(
        self, task: Task, ways: _Ways, bands: Sequence[int], count: int, start: Sequence[int]
    ) -> None:
        self._room = Room(task, start)
        self._ways = ways
        self._devices = len(task.cluster)
        self._free = [group for group, pin in enumerate(task.pins) if pin == ANYWHERE]
        totals_s = [sum(row) for row in task.work_s]
        fastest_s = min(totals_s) or 1.0
        speeds = [fastest_s / (total or fastest_s) for total in totals_s]
        even_s = fastest_s / sum(speeds) / count
        self._layer_s = fastest_s / len(task.indexed)
        self._weight = [speed / even_s for speed in speeds]
        self._parts = [_by_band(task, members, bands) for members in task.indexed.members]
        self._load_s = [[0.0] * self._devices for _ in range(count)]
        self._readers = [[0] * self._devices for _ in ways.home]
        for group, device in enumerate(start):
            for band, row in self._parts[group]:
                self._load_s[band][device] += row[device]
            for tensor in ways.reads[group]:
                self._readers[tensor][device] += 1

    def anneal(self, price: float, moves: int, chance: Random) -> list[int]:
        """Move groups about.

        Args:
            price: of a second of travel, in seconds of imbalance.
            moves: how many are tried.
            chance: which.

        Returns:
            By group, its device.
        """
        device_of, near = self._room.device_of, self._ways.near
        heat_s, cooling = _HOTTEST * self._layer_s, (_COLDEST / _HOTTEST) ** (1 / max(1, moves))
        for _ in range(moves):
            heat_s *= cooling
            group = self._free[int(chance.random() * len(self._free))]
            if near[group] and chance.random() < _NEAR:
                there = device_of[near[group][int(chance.random() * len(near[group]))]]
            else:
                there = int(chance.random() * self._devices)
            here = device_of[group]
            if there == here:
                continue
            change_s = self._imbalance_s(group, here, there) + price * self._more_travel_s(group, here, there)
            if change_s > 0 and chance.random() >= exp(-change_s / heat_s):
                continue
            if self._room.takes(there, (group,)):
                self._move(group, here, there)
        return device_of

    def _imbalance_s(self, group: int, here: int, there: int) -> float:
        """How much more uneven work gets."""
        change = 0.0
        for band, row in self._parts[group]:
            load_s = self._load_s[band]
            less, more = row[here], row[there]
            change -= self._weight[here] * less * (2 * load_s[here] - less)
            change += self._weight[there] * more * (2 * load_s[there] + more)
        return change

    def _more_travel_s(self, group: int, here: int, there: int) -> float:
        """How many seconds more tensors travel."""
        ways, device_of, change = self._ways, self._room.device_of, 0.0
        for tensor in ways.reads[group]:
            readers, from_home_s = self._readers[tensor], ways.travel_s[device_of[ways.home[tensor]]]
            if readers[here] == 1:
                change -= from_home_s[here][tensor]
            if readers[there] == 0:
                change += from_home_s[there][tensor]
        for tensor in ways.makes[group]:
            for device, count in enumerate(self._readers[tensor]):
                if count:
                    change += ways.travel_s[there][device][tensor] - ways.travel_s[here][device][tensor]
        return change

    def _move(self, group: int, here: int, there: int) -> None:
        self._room.move(group, there)
        for band, row in self._parts[group]:
            self._load_s[band][here] -= row[here]
            self._load_s[band][there] += row[there]
        for tensor in self._ways.reads[group]:
            self._readers[tensor][here] -= 1
            self._readers[tensor][there] += 1


def _by_band(task: Task, layers: Sequence[int], bands: Sequence[int]) -> list[tuple[int, list[float]]]:
    """A group's seconds by band and device."""
    found: dict[int, list[float]] = {}
    for layer in layers:
        row = found.setdefault(bands[layer], [0.0 for _ in task.devices])
        for device in task.devices:
            row[device] += task.work_s[device][layer]
    return list(found.items())
