"""The inner loop of annealing: change a placement, estimate it, accept the change or undo it."""

from math import log
from typing import NamedTuple

import numpy as np

from baechi.place.problem import ANYWHERE, Problem
from baechi.place.search.compiler import Bools, Floats, Ints, compiled, copy, inlined
from baechi.place.search.estimate import Placement, Times, estimate
from baechi.place.search.room import LARGEST, Room, move, takes
from baechi.place.search.tables import Lists, Tables

_HOTTEST, _COLDEST = 3e-3, 3e-5
"""The temperature at the beginning and at the end, as fractions of the step."""

TURNS, _SWAPS, _HANDFULS, _NEAR = 0.15, 0.2, 0.5, 0.7
"""Probabilities: a change is a turn; a move is a swap; it takes several groups; it goes to a neighbour."""

_CRITICAL = 0.5
"""The probability that a change begins at a layer of the critical chain."""

_FURTHEST = 0.1
"""The largest change of a priority by a turn, as a fraction of the step."""

_AS_USUAL = 0.97
"""A change is given up if forward alone is too long, were backward this fraction of what it was."""

_IDLE = 80_000
"""A search gives up where this many draws hold no possible change."""

_NONE = -1


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
        """Collect the groups of a problem."""
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
        now, shortest: the current placement; priorities and order of the shortest one.
        tried: room for the order of one that is tried.
        room: memory of the current placement, and by group its device.
        shortest_of: by group, its device in the shortest placement.
        times: room for estimates.
        begins_s, ends_s: by layer, in forward of the current placement.
        chain: its critical chain, the last layer first.
        earlier: by layer, the one that its device ran before.
        newest: by device, the last layer so far.
    """

    now: Placement
    shortest: Placement
    tried: Ints
    room: Room
    shortest_of: Ints
    times: Times
    begins_s: Floats
    ends_s: Floats
    chain: Ints
    earlier: Ints
    newest: Ints

    @classmethod
    def of(cls, tables: Tables, times: Times, room: Room, now: Placement) -> "State":
        """A search that begins."""
        return cls(
            now,
            Placement(now.on, now.priority.copy(), now.order.copy()),
            now.order.copy(),
            room,
            room.device_of.copy(),
            times,
            times.begins_s.copy(),
            times.ends_s.copy(),
            np.zeros(tables.layers, np.int64),
            np.zeros(tables.layers, np.int64),
            np.zeros(tables.devices, np.int64),
        )


class Progress(NamedTuple):
    """The progress of a search.

    Args:
        step_s, shortest_s: estimates of the current placement, and of the shortest one.
        tried: estimates so far.
        length: of the critical chain of the current placement.
        usual_s: nearly how long the backward of the current placement takes.
    """

    step_s: float
    shortest_s: float
    tried: int
    length: int
    usual_s: float


class Portion(NamedTuple):
    """When one run of the inner loop stops.

    Args:
        wanted_s: stop at an estimate as short as this.
        until: stop after this number of estimates in all.
        most: the number of estimates at which the temperature is lowest.
        turns: the probability that a change is a turn.
    """

    wanted_s: float
    until: int
    most: int
    turns: float


@compiled
def anneal(
    tables: Tables,
    groups: Groups,
    state: State,
    chance: np.random.Generator,
    now: Progress,
    portion: Portion,
) -> Progress:
    """Continue a search."""
    step_s, shortest_s, tried, length, usual_s = now
    room, times, on, priority = state.room, state.times, state.now.on, state.now.priority
    for _ in range(_IDLE):
        if tried >= portion.until:
            break
        heat_s = step_s * _HOTTEST * (_COLDEST / _HOTTEST) ** (tried / portion.most)
        limit_s = step_s - heat_s * log(1.0 - chance.random())
        turned, before_s, leaving, coming, here, there = _NONE, 0.0, 0, 0, 0, 0
        start = int(chance.random() * len(on))
        if length and chance.random() < _CRITICAL:
            start = state.chain[int(chance.random() * length)]
        if chance.random() < portion.turns:
            turned, before_s = start, priority[start]
            priority[turned] += (2 * chance.random() - 1) * step_s * _FURTHEST
        else:
            first = groups.group_of[start]
            here, there = room.device_of[first], target(groups, room, chance, _NEAR, first)
            if here == there or not groups.moves[first]:
                continue
            most = int((LARGEST + 1) ** chance.random()) if chance.random() < _HANDFULS else 1
            leaving = _handful(groups, room, chance, first, most, room.leave)
            if chance.random() < _SWAPS:
                other = groups.free[int(chance.random() * len(groups.free))]
                if room.device_of[other] != there:
                    continue
                coming = _handful(groups, room, chance, other, leaving, room.come)
            if not takes(room, there, room.leave, leaving, room.come, coming) or not takes(
                room, here, room.come, coming, room.leave, leaving
            ):
                continue
            _put(groups, on, room.leave, leaving, there)
            _put(groups, on, room.come, coming, here)
        tried += 1
        copy(state.now.order, state.tried)
        new_s = estimate(tables, times, Placement(on, priority, state.tried), limit_s, usual_s)
        if new_s > limit_s:
            if turned >= 0:
                priority[turned] = before_s
            _put(groups, on, room.leave, leaving, here)
            _put(groups, on, room.come, coming, there)
            continue
        for place in range(leaving):
            move(room, room.leave[place], there)
        for place in range(coming):
            move(room, room.come[place], here)
        copy(state.tried, state.now.order)
        copy(times.begins_s, state.begins_s)
        copy(times.ends_s, state.ends_s)
        usual_s = (new_s - times.over_s[0]) * _AS_USUAL * (tables.phases - 1)
        if new_s != step_s or not length:
            length = follow(tables, state)
        step_s = new_s
        if step_s < shortest_s * (1 - 1e-9):
            shortest_s = step_s
            copy(room.device_of, state.shortest_of)
            copy(priority, state.shortest.priority)
            copy(state.now.order, state.shortest.order)
            if shortest_s <= portion.wanted_s:
                break
    return Progress(step_s, shortest_s, tried, length, usual_s)


@inlined
def target(groups: Groups, room: Room, chance: np.random.Generator, near: float, group: int) -> int:
    """Draw a device for a group."""
    begin, end = groups.near.begin[group], groups.near.begin[group + 1]
    if end > begin and chance.random() < near:
        return int(room.device_of[groups.near.items[begin + int(chance.random() * (end - begin))]])
    return int(chance.random() * len(room.free_bytes))


@inlined
def _handful(
    groups: Groups, room: Room, chance: np.random.Generator, first: int, most: int, handful: Ints
) -> int:
    """Collect a group and some groups connected with it on its device. Returns how many."""
    handful[0] = first
    size, here = 1, room.device_of[first]
    for _ in range(2 * most):
        one = handful[int(chance.random() * size)]
        begin, end = groups.near.begin[one], groups.near.begin[one + 1]
        if size >= most or begin == end:
            break
        group = groups.near.items[begin + int(chance.random() * (end - begin))]
        known = room.device_of[group] != here or not groups.moves[group]
        for place in range(size):
            known = known or handful[place] == group
        if not known:
            handful[size] = group
            size += 1
    return size


@inlined
def _put(groups: Groups, on: Ints, handful: Ints, size: int, device: int) -> None:
    """Put the layers of groups on a device."""
    for place in range(size):
        for item in range(groups.members.begin[handful[place]], groups.members.begin[handful[place] + 1]):
            on[groups.members.items[item]] = device


@inlined
def follow(tables: Tables, state: State) -> int:
    """Find the critical chain of forward: from its end back, what each layer waited for.

    A layer waits for its device, or for the last of its inputs.
    """
    begins_s, ends_s, on, earlier = state.begins_s, state.ends_s, state.now.on, state.earlier
    reads, devices, newest, order = tables.reads, tables.devices, state.newest, state.now.order
    last, length = order[0], 0
    newest.fill(_NONE)
    for layer in order:
        earlier[layer] = newest[on[layer]]
        newest[on[layer]] = layer
        if ends_s[layer] > ends_s[last]:
            last = layer
    while last != _NONE:
        state.chain[length] = last
        length += 1
        before = earlier[last]
        if before == _NONE or ends_s[before] < begins_s[last]:
            before, latest_s = _NONE, -1.0
            for item in range(reads.begin[last], reads.begin[last + 1]):
                tensor = reads.items[item]
                maker = tables.source[tensor]
                there_s = ends_s[maker] if maker >= 0 else -1.0
                if maker >= 0 and on[maker] != on[last]:
                    way = tables.link[on[maker] * (devices + 1) + on[last]]
                    there_s += tables.travel_s[way * len(tables.source) + tensor]
                if there_s > latest_s:
                    before, latest_s = maker, there_s
        last = before
    return length
