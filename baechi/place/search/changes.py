"""The inner loop of annealing: change a placement, estimate it, accept the change or undo it."""

from math import log
from typing import NamedTuple

import numpy as np

from baechi.place.problem import ANYWHERE, Problem
from baechi.place.search.estimating.compiled import Bools, Floats, Ints, compiled, copy, inlined
from baechi.place.search.estimating.course import Course, accept
from baechi.place.search.estimating.critical import Critical, follow
from baechi.place.search.estimating.differences import of_devices, of_priority
from baechi.place.search.estimating.estimate import estimate
from baechi.place.search.estimating.tables import Lists, Tables, is_alone
from baechi.place.search.room import Room, move, takes

_HOTTEST, _COLDEST = 3e-3, 3e-5
"""The temperature at the beginning and at the end, as fractions of the step."""

_TURNS, _SWAPS, _HANDFULS, _NEAR = 0.15, 0.2, 0.5, 0.7
"""Probabilities: a change is a turn; a move is a swap; it takes several groups; it goes to a neighbour."""

_CRITICAL = 0.5
"""The probability that a change begins at a layer of the critical chain."""

_LARGEST = 8
"""The most groups that move together."""

_FURTHEST = 0.1
"""The largest change of a priority by a turn, as a fraction of the step."""

_IDLE = 80_000
"""A search gives up where this many draws hold no possible change."""


class Groups(NamedTuple):
    """The groups of a problem, as annealing moves them.

    Args:
        members: by group, its layers.
        near: by group, the groups that it exchanges tensors with.
        free: the groups that may move.
        moves: by group, whether it may move.
        group_of: by layer.
    """

    members: Lists
    near: Lists
    free: Ints
    moves: Bools
    group_of: Ints

    @classmethod
    def of(cls, problem: Problem) -> "Groups":
        """Collect the groups of a problem.

        Args:
            problem: what is placed.
        """
        moves = np.array([pin == ANYWHERE for pin in problem.pins], np.bool_)
        return cls(
            Lists.of(problem.indexed.members),
            Lists.of(problem.neighbours),
            np.flatnonzero(moves),
            moves,
            np.array(problem.indexed.group_of, np.int64),
        )


class State(NamedTuple):
    """The current placement of a search, and the shortest one so far.

    Args:
        room: memory of the current placement.
        on: by layer, its device.
        priority: by layer.
        order: layers.
        shortest_on, shortest_priority, shortest_order: the same of the shortest one; devices by group.
    """

    room: Room
    on: Ints
    priority: Floats
    order: Ints
    shortest_on: Ints
    shortest_priority: Floats
    shortest_order: Ints


class Progress(NamedTuple):
    """The progress of a search.

    Args:
        step_s, shortest_s: estimates of the current placement, and of the shortest one.
        tried: estimates so far.
        length: of the critical chain of the current placement; 0 if it was not followed yet.
    """

    step_s: float
    shortest_s: float
    tried: int
    length: int


class Portion(NamedTuple):
    """When one run of the inner loop stops.

    Args:
        wanted_s: stop at an estimate as short as this.
        until: stop after this number of estimates in all.
        most: the number of estimates at which the temperature is lowest.
    """

    wanted_s: float
    until: int
    most: int


@compiled
def anneal(
    tables: Tables,
    course: Course,
    critical: Critical,
    groups: Groups,
    state: State,
    chance: np.random.Generator,
    now: Progress,
    portion: Portion,
) -> Progress:
    """Continue a search.

    Args:
        tables, groups: the problem.
        course, critical: of the current placement; changed in place.
        state: the placements of the search; changed in place.
        chance: the random generator.
        now: the progress so far.
        portion: when to stop.

    Returns:
        The new progress; with as many estimates as before if no change is possible.
    """
    step_s, shortest_s, tried, length = now
    order, moved, alone = np.empty_like(state.order), np.empty_like(state.order), is_alone(state.on)
    leave, come = np.empty(_LARGEST, np.int64), np.empty(_LARGEST, np.int64)
    turns = 0.0 if tables.in_turn else _TURNS if len(groups.free) else 1.0
    if not length:  # else it goes on where it stopped: how much one call does changes nothing
        length = follow(tables, course, state.on, state.order, critical)
    for _ in range(_IDLE):
        if tried >= portion.until:
            break
        heat_s = step_s * _HOTTEST * (_COLDEST / _HOTTEST) ** (tried / portion.most)
        limit_s = step_s - heat_s * log(1.0 - chance.random())
        layer, turn_s, leaving, coming, here, there = -1, 0.0, 0, 0, 0, 0
        start = int(chance.random() * len(state.on))
        if chance.random() < _CRITICAL:
            start = critical.chain[int(chance.random() * length)]
        if chance.random() < turns:
            layer = start
            turn_s = (2 * chance.random() - 1) * step_s * _FURTHEST
            before_s = state.priority[layer]
            state.priority[layer] += turn_s
            change = of_priority(tables, course, layer)
        else:
            here, there, leaving, coming = _choose(
                groups, state.room, chance, groups.group_of[start], leave, come
            )
            if here == there:
                continue
            _put(groups, state.on, leave[:leaving], there)
            _put(groups, state.on, come[:coming], here)
            count = _collect(groups, come[:coming], moved, _collect(groups, leave[:leaving], moved, 0))
            host = tables.charged and is_alone(state.on) != alone
            change = of_devices(tables, course, moved[:count], host)
        tried += 1
        copy(state.order, order)
        new_s = estimate(tables, course, state.on, state.priority, limit_s, order, change)
        if new_s > limit_s:
            if layer >= 0:
                state.priority[layer] = before_s
            _put(groups, state.on, leave[:leaving], here)
            _put(groups, state.on, come[:coming], there)
            continue
        alone = is_alone(state.on)
        accept(tables, course, change.begin, state.on, order)
        if new_s != step_s:
            length = follow(tables, course, state.on, order, critical)
        step_s = new_s
        copy(order, state.order)
        for group in leave[:leaving]:
            move(state.room, group, there)
        for group in come[:coming]:
            move(state.room, group, here)
        if step_s < shortest_s * (1 - 1e-9):
            shortest_s = step_s
            copy(state.room.device_of, state.shortest_on)
            copy(state.priority, state.shortest_priority)
            copy(order, state.shortest_order)
            if shortest_s <= portion.wanted_s:
                break
    return Progress(step_s, shortest_s, tried, length)


@inlined
def _collect(groups: Groups, handful: Ints, moved: Ints, count: int) -> int:
    """Add the layers of groups to those that have moved. Returns how many these are."""
    for group in handful:
        for place in range(groups.members.begin[group], groups.members.begin[group + 1]):
            moved[count] = groups.members.items[place]
            count += 1
    return count


@inlined
def draw(groups: Groups, room: Room, chance: np.random.Generator, near: float) -> tuple[int, int]:
    """Draw a group, and a device for it.

    Args:
        groups: the groups of the problem.
        room: the current placement.
        chance: the random generator.
        near: the probability of a neighbour's device; else it is any device.

    Returns:
        The group and the device, which may be the group's own.
    """
    group = groups.free[int(chance.random() * len(groups.free))]
    return group, _target(groups, room, chance, near, group)


@inlined
def _target(groups: Groups, room: Room, chance: np.random.Generator, near: float, group: int) -> int:
    """Draw a device for a group."""
    begin, end = groups.near.begin[group], groups.near.begin[group + 1]
    if end > begin and chance.random() < near:
        return int(room.device_of[groups.near.items[begin + int(chance.random() * (end - begin))]])
    return int(chance.random() * len(room.free_bytes))


@inlined
def _choose(
    groups: Groups, room: Room, chance: np.random.Generator, first: int, leave: Ints, come: Ints
) -> tuple[int, int, int, int]:
    """Draw a move: source, target, how many groups leave and how many come back; no target if impossible."""
    here, there = room.device_of[first], _target(groups, room, chance, _NEAR, first)
    if there == here or not groups.moves[first]:
        return here, here, 0, 0
    most = int((_LARGEST + 1) ** chance.random()) if chance.random() < _HANDFULS else 1
    leaving, coming = _handful(groups, room, chance, first, most, leave), 0
    if chance.random() < _SWAPS:
        other = groups.free[int(chance.random() * len(groups.free))]
        if room.device_of[other] != there:
            return here, here, 0, 0
        coming = _handful(groups, room, chance, other, leaving, come)
    if takes(room, there, leave[:leaving], come[:coming]) and takes(
        room, here, come[:coming], leave[:leaving]
    ):
        return here, there, leaving, coming
    return here, here, 0, 0


@inlined
def _handful(
    groups: Groups, room: Room, chance: np.random.Generator, first: int, most: int, handful: Ints
) -> int:
    """Collect a group and some groups connected with it on its device. Returns how many."""
    handful[0] = first
    size, here = 1, room.device_of[first]
    for _ in range(2 * most):
        if size >= most:
            break
        one = handful[int(chance.random() * size)]
        begin, end = groups.near.begin[one], groups.near.begin[one + 1]
        if begin == end:
            break
        group = groups.near.items[begin + int(chance.random() * (end - begin))]
        if room.device_of[group] == here and groups.moves[group] and not _holds(handful, size, group):
            handful[size] = group
            size += 1
    return size


@inlined
def _holds(handful: Ints, size: int, group: int) -> bool:
    """Whether a group is among the first ones."""
    for place in range(size):
        if handful[place] == group:
            return True
    return False


@inlined
def _put(groups: Groups, on: Ints, moved: Ints, device: int) -> None:
    """Put the layers of groups on a device."""
    for group in moved:
        for place in range(groups.members.begin[group], groups.members.begin[group + 1]):
            on[groups.members.items[place]] = device
