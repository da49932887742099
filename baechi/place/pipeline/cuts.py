"""Contiguous cuts of a model for a pipeline: the slowest part as fast as it can be.

    groups    g0 g1 g2 | g3 g4 | g5 g6 | g7 g8 g9      in code order
    devices      d0       d1      d0        d1         two virtual stages on each

A pipeline is as fast as its slowest device, so parts should take equally long. With several virtual stages a
device gets a part of each round: filling and draining are shorter, and more travels. What memory a part needs
depends on where it stands: behind it, as many microbatches are in flight as devices follow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baechi.place.problem import ANYWHERE, Problem

ROUNDS = (1, 2, 4, 8)
"""Numbers of virtual stages that are tried."""

_HALVINGS = 40


@dataclass(frozen=True)
class _Weights:
    """By group: seconds on each device, and bytes that stay or that each microbatch in flight takes."""

    work_s: list[list[float]]
    fixed_bytes: list[int]
    live_bytes: list[int]


def cuts(problem: Problem, microbatches: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Cuts over some of the devices, in some orders, with some numbers of virtual stages.

    Args:
        problem: what is placed.
        microbatches: how many.

    Yields:
        What it is, and by group its device. Without regard to pins, which come last.
    """
    weights, seen = _weights(problem), set()
    for order in _orders(problem, weights):
        for used in range(len(order), 0, -1):
            for rounds in ROUNDS if used > 1 else (1,):
                if rounds * used > len(problem.indexed.members):
                    continue
                found = _cut(problem, weights, order[:used], rounds, microbatches)
                if found is not None and found not in seen:
                    seen.add(found)
                    stages = f", {rounds} virtual stages" if rounds > 1 else ""
                    yield f"contiguous over {used}{stages}", found


def _orders(problem: Problem, weights: _Weights) -> list[tuple[int, ...]]:
    """The devices as they stand, the fastest first, and the largest first."""
    devices = list(problem.devices)
    total_s = {device: sum(weights.work_s[device]) for device in devices}
    found = [
        devices,
        sorted(devices, key=lambda device: (total_s[device], device)),
        sorted(devices, key=lambda device: (-problem.memory_bytes[device], device)),
    ]
    return list(dict.fromkeys(map(tuple, found)))


def _weights(problem: Problem) -> _Weights:
    members, training = problem.indexed.members, problem.training
    parts = problem.footprints
    return _Weights(
        [[sum([row[layer] for layer in group]) for group in members] for row in problem.work_s],
        [
            sum([parts[n].always_bytes + 2 * training * parts[n].gradient_bytes for n in group])
            for group in members
        ],
        [sum([parts[n].saved_bytes + parts[n].output_bytes for n in group]) for group in members],
    )


def _cut(
    problem: Problem, weights: _Weights, order: Sequence[int], rounds: int, microbatches: int
) -> tuple[int, ...] | None:
    """The cut whose slowest part is fastest, by halving the interval of times; None if nothing fits."""
    high = sum([max(times) for times in zip(*[weights.work_s[device] for device in order], strict=True)])
    low, best = 0.0, None
    for _ in range(_HALVINGS):
        most_s = (low + high) / 2 if best is not None else high
        found = _filled(problem, weights, order, rounds, microbatches, most_s)
        if found is not None:
            best, high = found, most_s
        elif best is None:
            return None
        else:
            low = most_s
    return best


def _filled(
    problem: Problem, weights: _Weights, order: Sequence[int], rounds: int, microbatches: int, most_s: float
) -> tuple[int, ...] | None:
    """Fill part after part up to a time and the memory of its device; None if groups are left over."""
    room = list(problem.memory_bytes)
    device_of: list[int] = []
    groups, group = len(weights.fixed_bytes), 0
    for part in range(rounds * len(order)):
        place = part % len(order)
        device, taken_s = order[place], 0.0
        in_flight = min(microbatches, len(order) - place + (rounds - 1) * len(order))
        while group < groups:
            size = weights.fixed_bytes[group] + in_flight * weights.live_bytes[group]
            if taken_s + weights.work_s[device][group] > most_s or size > room[device]:
                break
            taken_s += weights.work_s[device][group]
            room[device] -= size
            device_of.append(device)
            group += 1
    if group < groups:
        return None
    pairs = zip(problem.pins, device_of, strict=True)
    return tuple([device if pin == ANYWHERE else pin for pin, device in pairs])
