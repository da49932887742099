"""Placements that keep modules whole: towers, stacks, blocks.

    vision_model  120 ms ─▶ device:0         the heaviest part is divided into the modules in it, again;
    text_model     30 ms ─▶ device:1         of each division, the heaviest part first, where it ends soonest
    the rest    below 1 % ─▶ beside what it exchanges tensors with

What a person would write by hand. Such plans have few cut edges, and are good starts of a search.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from operator import attrgetter

from baechi.place.bottom_level import bottom_level_order
from baechi.place.evaluation import Attempt, Check
from baechi.place.problem import ANYWHERE, Problem

NAME = "whole modules"

_MOST_PARTS = 16
"""Modules are divided until there are so many parts that matter."""

_FEW = 8
"""So many placements of the parts of one division are all tried."""

_LAYERS = 20_000
"""So many layers are simulated: of larger graphs fewer placements."""

_KEPT = 3
"""So many are told, and searched from."""

_MATTERS = 0.01
"""A part with less of the work follows its neighbours."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A module, as far as it is whole.

    Args:
        module: its qualified name.
        groups: the groups of layers in it, in code order.
        work_s: by device, its part of the step.
    """

    module: tuple[str, ...]
    groups: tuple[int, ...]
    work_s: tuple[float, ...]


def whole_modules(problem: Problem, check: Check) -> list[Attempt]:
    """The best placements of whole modules on several devices that fit."""
    if len(problem.cluster) == 1 or not problem.indexed.members:
        return []
    spread = {
        device_of: None
        for parts in _divisions(problem)
        for device_of in (_with_the_rest(problem, parts, devices) for devices in _placements(problem, parts))
        if len(set(device_of)) > 1
    }
    most = max(1, _LAYERS // len(problem.indexed))
    tried = [
        Attempt(NAME, check(device_of, bottom_level_order(problem, device_of)))
        for device_of in islice(spread, most)
    ]
    return sorted([one for one in tried if one.found.fits(problem)], key=attrgetter("step_s"))[:_KEPT]


def _divisions(problem: Problem) -> Iterator[list[_Part]]:
    """The model in parts that matter: more of them each time."""
    names = zip(problem.indexed.names, problem.indexed.costs, strict=True)
    modules = [tuple((costs.module or name).split(".")) for name, costs in names]
    every = range(len(problem.indexed.members))
    of_group = [modules[members[0]] for members in problem.indexed.members]
    parts = [_part(problem, (), [group for group in every if problem.pins[group] == ANYWHERE])]
    least_s = sum(parts[0].work_s) * _MATTERS
    while len(parts) <= _MOST_PARTS:
        divisible = [one for one in parts if len(one.groups) > 1]
        if not divisible:
            return
        heaviest = max(divisible, key=lambda one: sum(one.work_s))
        depth = len(heaviest.module)
        inside: dict[tuple[str, ...], list[int]] = {}
        for group in heaviest.groups:
            inside.setdefault(of_group[group][: depth + 1], []).append(group)
        made = [_part(problem, module, groups) for module, groups in inside.items()]
        if len(made) == 1 and made[0].module == heaviest.module:  # a module with several groups of its own
            return
        parts.remove(heaviest)
        parts += [one for one in made if sum(one.work_s) >= least_s]
        if 2 <= len(parts) <= _MOST_PARTS and len(made) > 1:
            yield list(parts)


def _part(problem: Problem, module: tuple[str, ...], groups: list[int]) -> _Part:
    members = problem.indexed.members
    work_s = [sum([work[layer] for group in groups for layer in members[group]]) for work in problem.work_s]
    return _Part(module, tuple(groups), tuple(work_s))


def _placements(problem: Problem, parts: list[_Part]) -> Iterator[tuple[int, ...]]:
    """By part, its device: all placements of few, and each part where it ends soonest."""
    if len(problem.cluster) ** len(parts) <= _FEW:
        yield from product(problem.devices, repeat=len(parts))
        return
    ends_s = [0.0 for _ in problem.devices]
    on = [0 for _ in parts]
    for number in sorted(range(len(parts)), key=lambda number: -sum(parts[number].work_s)):
        work_s = parts[number].work_s
        device = min(problem.devices, key=lambda device: ends_s[device] + work_s[device])
        ends_s[device] += work_s[device]
        on[number] = device
    yield tuple(on)


def _with_the_rest(problem: Problem, parts: list[_Part], devices: tuple[int, ...]) -> tuple[int, ...]:
    """A placement of all groups: those in no part lie with the neighbours that they exchange most with."""
    device_of = list(problem.pins)
    for part, device in zip(parts, devices, strict=True):
        for group in part.groups:
            device_of[group] = device
    waiting = [group for group, device in enumerate(device_of) if device == ANYWHERE]
    for _ in range(2):  # the second time those whose neighbours waited, too
        for group in waiting:
            near = [device_of[other] for other in problem.neighbours[group] if device_of[other] != ANYWHERE]
            if near:
                device_of[group] = max(near, key=near.count)
    return tuple([0 if device == ANYWHERE else device for device in device_of])
