"""Start placements for the search: work is balanced over the devices at every time, and few tensors are cut.

    time slabs of an unlimited schedule      |  band 0  |  band 1  |  band 2  |  ...
    work of each device in each band              about equal
    tensors that have to travel                   as few as possible

With one band this is a balanced min-cut partition, whose devices wait for each other. With very many
bands it is list scheduling. The best number lies between and is unknown. So several numbers of bands and
prices of transfers are tried, each by annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983) of

    sum over bands and devices of  work^2 x speed / even share    +    price x seconds of travel

The move of one group changes few terms, so a hundred thousand moves take a fraction of a second.
"""

from collections.abc import Iterator, Sequence
from math import exp
from typing import NamedTuple

import numpy as np

from baechi.place.problem import ANYWHERE, Problem
from baechi.place.search.changes import Groups, target
from baechi.place.search.compiler import Floats, Ints, compiled, inlined
from baechi.place.search.room import Room, move, takes
from baechi.place.search.tables import Lists
from baechi.records import Link

COUNTS = (2, 4, 8, 12, 16, 24)
"""Numbers of bands."""

PRICES = (0.05, 0.2, 0.8)
"""Prices of a second of transfers, in seconds of imbalance."""

_HOTTEST, _COLDEST = 4.0, 0.04
"""The temperature at the beginning and at the end, in mean times of a layer."""

_NEAR = 0.8
"""The probability that a group moves to a neighbour's device; otherwise to any device."""


def partitions(
    problem: Problem, start: Sequence[int], moves: int, seed: int = 0, unseen: Ints | None = None
) -> Iterator[list[int]]:
    """A partition for each number of bands and each price."""
    if len(problem.cluster) < 2 or all(pin != ANYWHERE for pin in problem.pins):
        return
    groups, ways = Groups.of(problem), _Ways.of(problem)
    for count in COUNTS:
        spread = _Spread.of(problem, _bands(problem, count), count)
        for price in PRICES:
            room = Room.of(problem, start, unseen)
            _anneal(groups, ways, spread, room, price, moves, np.random.default_rng(seed))
            yield room.device_of.tolist()


def _bands(problem: Problem, count: int) -> list[int]:
    """By layer, its band: in the order in which layers could start, all bands of equal work."""
    indexed = problem.indexed
    work_s = [min(times) for times in zip(*problem.work_s, strict=True)]
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


class _Ways(NamedTuple):
    """The tensors exchanged between groups, and the times of their transfers.

    Args:
        home: by tensor, the group that makes it, or `ANYWHERE`.
        makes, reads: by group, tensors that other groups read, and tensors of other groups that it reads.
        readers: by tensor and device, how many groups there read it, without the one that makes it; filled.
        link: by source and target device, the row of `travel_s`.
        travel_s: by link and tensor, seconds; in training, both ways.
    """

    home: Ints
    makes: Lists
    reads: Lists
    readers: Ints
    link: Ints
    travel_s: Floats

    @classmethod
    def of(cls, problem: Problem) -> "_Ways":
        """Collect the transfers of a problem."""
        indexed = problem.indexed
        home = [indexed.group_of[maker] if maker >= 0 else ANYWHERE for maker in indexed.source]
        makes: list[list[int]] = [[] for _ in indexed.members]
        reads: list[list[int]] = [[] for _ in indexed.members]
        for tensor, maker in enumerate(home):
            if maker == ANYWHERE:
                continue
            makes[maker].append(tensor)
            for group in sorted({indexed.group_of[one] for one in indexed.consumers[tensor]} - {maker}):
                reads[group].append(tensor)
        link, travel_s = _travel_s(problem)
        return cls(
            home=np.array(home, np.int64),
            makes=Lists.of(makes),
            reads=Lists.of(reads),
            readers=np.zeros(len(home) * len(problem.cluster), np.int64),
            link=link,
            travel_s=travel_s,
        )


class _Spread(NamedTuple):
    """Work by group and band.

    Args:
        parts: by group, its rows of `bands` and `part_s`.
        bands: by part, its band.
        part_s: by part and device, seconds.
        weight: by device, its speed over a band's even share.
        layer_s: the mean time of a layer.
        load_s: by band and device, the work there; filled.
    """

    parts: Lists
    bands: Ints
    part_s: Floats
    weight: Floats
    layer_s: float
    load_s: Floats

    @classmethod
    def of(cls, problem: Problem, bands: Sequence[int], count: int) -> "_Spread":
        """Collect the work of a problem."""
        totals_s = [sum(row) for row in problem.work_s]
        fastest_s = min(totals_s) or 1.0
        speeds = [fastest_s / (total or fastest_s) for total in totals_s]
        even_s = fastest_s / sum(speeds) / count
        parts: list[range] = []
        found: list[tuple[int, list[float]]] = []
        for members in problem.indexed.members:
            rows = _by_band(problem, members, bands)
            parts.append(range(len(found), len(found) + len(rows)))
            found += rows
        return cls(
            Lists.of(parts),
            np.array([band for band, _ in found], np.int64),
            np.array([seconds for _, row in found for seconds in row], np.float64),
            np.array([speed / even_s for speed in speeds]),
            fastest_s / len(problem.indexed),
            np.zeros(count * len(problem.cluster)),
        )


@compiled
def _anneal(
    groups: Groups,
    ways: _Ways,
    spread: _Spread,
    room: Room,
    price: float,
    moves: int,
    chance: np.random.Generator,
) -> None:
    """Anneal the groups' devices; `price`: the seconds of imbalance that a second of transfers is worth."""
    devices, load_s, readers = len(room.free_bytes), spread.load_s, ways.readers
    load_s.fill(0.0)
    readers.fill(0)
    for group in range(len(room.device_of)):
        device = room.device_of[group]
        for part in range(spread.parts.begin[group], spread.parts.begin[group + 1]):
            load_s[spread.bands[part] * devices + device] += spread.part_s[part * devices + device]
        for item in range(ways.reads.begin[group], ways.reads.begin[group + 1]):
            readers[ways.reads.items[item] * devices + device] += 1
    heat_s, cooling = _HOTTEST * spread.layer_s, (_COLDEST / _HOTTEST) ** (1 / max(1, moves))
    for _ in range(moves):
        heat_s *= cooling
        group = groups.free[int(chance.random() * len(groups.free))]
        there = target(groups, room, chance, _NEAR, group)
        here = room.device_of[group]
        if there == here:
            continue
        change_s = 0.0
        for part in range(spread.parts.begin[group], spread.parts.begin[group + 1]):
            band = spread.bands[part] * devices
            less, more = spread.part_s[part * devices + here], spread.part_s[part * devices + there]
            change_s -= spread.weight[here] * less * (2 * load_s[band + here] - less)
            change_s += spread.weight[there] * more * (2 * load_s[band + there] + more)
        change_s += price * _more_travel_s(ways, room, group, here, there)
        if change_s > 0 and chance.random() >= exp(-change_s / heat_s):
            continue
        room.leave[0] = group
        if takes(room, there, room.leave, 1, room.come, 0):
            move(room, group, there)
            for part in range(spread.parts.begin[group], spread.parts.begin[group + 1]):
                load_s[spread.bands[part] * devices + here] -= spread.part_s[part * devices + here]
                load_s[spread.bands[part] * devices + there] += spread.part_s[part * devices + there]
            for item in range(ways.reads.begin[group], ways.reads.begin[group + 1]):
                readers[ways.reads.items[item] * devices + here] -= 1
                readers[ways.reads.items[item] * devices + there] += 1


@inlined
def _more_travel_s(ways: _Ways, room: Room, group: int, here: int, there: int) -> float:
    """The change of transfer seconds when a group moves from device `here` to `there`."""
    change, devices, tensors, readers = 0.0, len(room.free_bytes), len(ways.home), ways.readers
    for item in range(ways.reads.begin[group], ways.reads.begin[group + 1]):
        tensor = ways.reads.items[item]
        home = room.device_of[ways.home[tensor]]
        if readers[tensor * devices + here] == 1 and home != here:
            change -= ways.travel_s[ways.link[home * devices + here] * tensors + tensor]
        if readers[tensor * devices + there] == 0 and home != there:
            change += ways.travel_s[ways.link[home * devices + there] * tensors + tensor]
    for item in range(ways.makes.begin[group], ways.makes.begin[group + 1]):
        tensor = ways.makes.items[item]
        for device in range(devices):
            if readers[tensor * devices + device]:
                if device != there:
                    change += ways.travel_s[ways.link[there * devices + device] * tensors + tensor]
                if device != here:
                    change -= ways.travel_s[ways.link[here * devices + device] * tensors + tensor]
    return change


def _travel_s(problem: Problem) -> tuple[Ints, Floats]:
    """By source and target device, the number of their link; by link and tensor, seconds."""
    numbers: dict[tuple[Link, Link], int] = {}
    seconds: list[list[float]] = []
    which = np.zeros((len(problem.cluster), len(problem.cluster)), np.int64)
    for here in problem.devices:
        for there in problem.devices:
            way = problem.links[here][there], problem.links[there][here]
            if way not in numbers:
                numbers[way] = len(numbers)
                seconds.append([problem.travel_s(here, there, size) for size in problem.indexed.size_bytes])
            which[here, there] = numbers[way]
    return which.ravel(), np.array(seconds).ravel()


def _by_band(problem: Problem, layers: Sequence[int], bands: Sequence[int]) -> list[tuple[int, list[float]]]:
    """A group's seconds by band and device."""
    found: dict[int, list[float]] = {}
    for layer in layers:
        row = found.setdefault(bands[layer], [0.0 for _ in problem.devices])
        for device in problem.devices:
            row[device] += problem.work_s[device][layer]
    return list(found.items())
