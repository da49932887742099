"""Contiguous cuts of a model for a pipeline: the slowest part as fast as it can be.

    groups    g0 g1 g2 | g3 g4 | g5 g6 | g7 g8 g9      in code order
    devices      d0       d1      d0        d1         two virtual stages on each

    devices      d0       d1      d1        d0         there and back: the last device goes on with the next

A pipeline is as fast as its slowest device, so parts should take equally long. With several virtual stages a
device gets a part of each round: filling and draining are shorter, and more travels. What memory a part needs
depends on where it stands: behind it, as many microbatches are in flight as devices follow. There and back
(the V of Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024), the first device has the last part, too.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TypeVar

from baechi.place.problem import ANYWHERE, Problem

ROUNDS = (1, 2, 3, 4, 8)
"""Numbers of virtual stages that are tried."""

_HALVINGS = 40

_Amount = TypeVar("_Amount", int, float)


class Weights:
    """What groups take, as sums from the first one on: a part of the model is a difference of two.

    Args:
        work_s: by device and group, seconds.
        fixed_bytes: by group, bytes that stay, and those that one microbatch takes until they are read.
        live_bytes: by group, bytes that each microbatch in flight keeps for backward.
    """

    def __init__(self, work_s: list[list[float]], fixed_bytes: list[int], live_bytes: list[int]) -> None:
        self.work_s = [_sums(times) for times in work_s]
        self.groups, self._bytes = len(fixed_bytes), (fixed_bytes, live_bytes)
        self._sums: dict[int, list[int]] = {}

    def bytes_with(self, in_flight: int) -> list[int]:
        """Bytes with some microbatches in flight."""
        if in_flight not in self._sums:
            pairs = zip(*self._bytes, strict=True)
            self._sums[in_flight] = _sums([fixed + in_flight * live for fixed, live in pairs])
        return self._sums[in_flight]


def cuts(problem: Problem, microbatches: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Cuts over some of the devices, in some orders, with some numbers of virtual stages."""
    weights, seen = weights_of(problem), set()
    for order in _orders(problem, weights):
        for used in range(len(order), 0, -1):
            for rounds in ROUNDS if used > 1 else (1,):
                if rounds * used > len(problem.indexed.members):
                    continue
                for turns in (False, True) if rounds > 1 else (False,):
                    found = cut_over(problem, weights, _path(order[:used], rounds, turns), microbatches)
                    if found is not None and found not in seen:
                        seen.add(found)
                        stages = f", {rounds} virtual stages" if rounds > 1 else ""
                        yield f"contiguous over {used}{stages}{', there and back' * turns}", found


def _path(order: Sequence[int], rounds: int, turns: bool) -> list[int]:
    """By part, its device."""
    back = order[::-1] if turns else order
    return [device for number in range(rounds) for device in (back if number % 2 else order)]


def _orders(problem: Problem, weights: Weights) -> list[tuple[int, ...]]:
    """The devices as they stand, the fastest first, and the largest first."""
    devices = list(problem.devices)
    total_s = {device: weights.work_s[device][-1] for device in devices}
    found = [
        devices,
        sorted(devices, key=lambda device: (total_s[device], device)),
        sorted(devices, key=lambda device: (-problem.memory_bytes[device], device)),
    ]
    return list(dict.fromkeys(map(tuple, found)))


def weights_of(problem: Problem) -> Weights:
    members, training = problem.indexed.members, problem.training
    parts = problem.footprints
    return Weights(
        [[sum([row[layer] for layer in group]) for group in members] for row in problem.work_s],
        [
            sum(
                [
                    parts[n].always_bytes + parts[n].output_bytes + 2 * training * parts[n].gradient_bytes
                    for n in group
                ]
            )
            for group in members
        ],
        [sum([parts[n].saved_bytes for n in group]) for group in members],
    )


def cut_over(
    problem: Problem, weights: Weights, path: Sequence[int], microbatches: int
) -> tuple[int, ...] | None:
    """The cut whose slowest part is fastest, by halving the interval of times; None if nothing fits."""
    high = max([weights.work_s[device][-1] for device in path])
    low, best = 0.0, None
    for _ in range(_HALVINGS):
        most_s = (low + high) / 2 if best is not None else high
        found = _filled(problem, weights, path, microbatches, most_s)
        if found is not None:
            best, high = found, most_s
        elif best is None:
            return None
        else:
            low = most_s
    device_of = [path[part] for part, count in enumerate(best or ()) for _ in range(count)]
    pairs = zip(problem.pins, device_of, strict=True)
    return tuple([device if pin == ANYWHERE else pin for pin, device in pairs])


def _filled(
    problem: Problem, weights: Weights, path: Sequence[int], microbatches: int, most_s: float
) -> list[int] | None:
    """By part, how many groups go into a time and the memory of its device; None if groups are left over."""
    room, counts, first = list(problem.memory_bytes), list[int](), 0
    for device in path:
        place = path.index(device)
        in_flight = min(microbatches, len(path) - place)
        work_s, sizes = weights.work_s[device], weights.bytes_with(in_flight)
        end = min(
            bisect_right(work_s, work_s[first] + most_s, lo=first),
            bisect_right(sizes, sizes[first] + room[device], lo=first),
        )
        counts.append(max(0, end - 1 - first))
        room[device] -= sizes[first + counts[-1]] - sizes[first]
        first += counts[-1]
    return counts if first == weights.groups else None


def _sums(amounts: Sequence[_Amount]) -> list[_Amount]:
    """The sums of the first none, one, two, ... of some amounts."""
    return list(accumulate(amounts, initial=0))
