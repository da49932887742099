"""Errors for placements that do not fit: the layer, the bytes missing on each device, and cures."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from baechi.errors import PlacementError
from baechi.place.evaluation import Evaluated
from baechi.place.fullness import recompute_helps
from baechi.place.ledger import Ledger
from baechi.place.problem import ANYWHERE, Problem
from baechi.units import format_bytes


def no_room(problem: Problem, ledger: Ledger, layer: int) -> PlacementError:
    """The error for a layer that fits on no device."""
    indexed = problem.indexed
    group = indexed.group_of[layer]
    others = len(indexed.members[group]) - 1
    device = ledger.device_of[group]
    shared = f" and {others} more that must share its device" if others else ""
    if device == ANYWHERE:
        needed_bytes, devices = problem.group_bytes[group].total_bytes, list(problem.devices)
    else:  # its group is placed, but the device gets too full when it runs
        needed_bytes, devices = problem.footprints[layer].forward_bytes, [device]
    pinned = ", pinned there" if problem.pins[group] != ANYWHERE else ""
    return refusal(
        problem,
        indexed.names[layer],
        f"no room for layer {indexed.names[layer]}{shared}{pinned}: needs {format_bytes(needed_bytes)}, "
        "and copies of what it reads from other devices",
        {d: max(0, problem.memory_bytes[d] - ledger.needed_bytes(d)) for d in devices},
        {d: ledger.short_bytes(layer, d) for d in devices},
        "another device",
    )


def no_single_device(problem: Problem, devices: Sequence[int], needed_bytes: int) -> PlacementError:
    """The error for a model that no device holds whole."""
    groups = [group.total_bytes for group in problem.group_bytes]
    largest = problem.indexed.names[problem.indexed.members[groups.index(max(groups))][0]]
    return refusal(
        problem,
        largest,
        f"no device holds all layers: they need {format_bytes(needed_bytes)}, "
        f"the largest part {largest} with {format_bytes(max(groups))}",
        {device: problem.memory_bytes[device] for device in devices},
        {device: needed_bytes - problem.memory_bytes[device] for device in devices},
        "a placer that uses several devices",
    )


def none_of_all(problem: Problem, nearest: Evaluated) -> PlacementError:
    """The error when every placement was tried."""
    return _missed(
        problem, nearest, "no placement of these layers keeps every device's memory: all were tried"
    )


def none_packed(problem: Problem, nearest: Evaluated) -> PlacementError:
    """The error when the integer program has no solution."""
    what = (
        "no placement of these layers keeps every device's memory: the integer program of it has no solution"
    )
    return _missed(problem, nearest, what)


def not_found(problem: Problem, nearest: Evaluated, tries: int) -> PlacementError:
    """The error when there may be a placement, and none was found."""
    what = f"none of {tries} placements keeps every device's memory, though there may be one that does"
    return _missed(problem, nearest, what)


def _missed(problem: Problem, nearest: Evaluated, what: str) -> PlacementError:
    """The error, with the missing bytes of the nearest try."""
    memory = problem.memory_bytes
    over = {d: peak - memory[d] for d, peak in enumerate(nearest.peak_bytes) if peak > memory[d]}
    worst = max(over, key=over.__getitem__)
    here = [group for group, device in enumerate(nearest.device_of) if device == worst]
    largest = max(here, key=lambda group: problem.group_bytes[group].total_bytes, default=0)
    name = problem.indexed.names[problem.indexed.members[largest][0]]
    pins = "fewer pins, " if any(pin != ANYWHERE for pin in problem.pins) else ""
    names = problem.cluster.names
    tried = {
        d: f"{format_bytes(memory[d])}, {format_bytes(short)} short in the nearest try"
        for d, short in over.items()
    }
    size, cure = format_bytes(problem.group_bytes[largest].total_bytes), f"{pins}another device"
    part = f"The largest part there is {name} with {size}."
    because = _why_one_layer(problem, name)
    return PlacementError(
        "\n".join([what, *_lines(problem, tried), part, *because, _help(problem, cure)]),
        layer=name,
        short_bytes={names[device]: short for device, short in over.items()},
    )


def refusal(
    problem: Problem,
    layer: str,
    what: str,
    free_bytes: Mapping[int, int],
    short_bytes: Mapping[int, int],
    cure: str,
) -> PlacementError:
    """An error with its numbers and cures."""
    names, memory = problem.cluster.names, problem.memory_bytes
    found = {}
    for device, free in free_bytes.items():
        there = "" if free == memory[device] else f"{format_bytes(free)} of "
        full = f"{there}{format_bytes(memory[device])}{' free' * bool(there)}"
        found[device] = f"{full}, {format_bytes(short_bytes[device])} short"
    because = _why_one_layer(problem, layer)
    return PlacementError(
        "\n".join([what, *_lines(problem, found), *because, _help(problem, cure)]),
        layer=layer,
        short_bytes={names[device]: short for device, short in short_bytes.items()},
    )


def _lines(problem: Problem, found: Mapping[int, str]) -> list[str]:
    """A line for devices of one kind of which the same is to be said."""
    devices, lines = problem.cluster.devices, []
    for (kind, what), group in groupby(found, lambda device: (devices[device].kind, found[device])):
        names = [devices[device].name for device in group]
        last = f"{'and' if len(names) == 2 else 'to'} {names[-1]}"
        which = names[0] if len(names) == 1 else f"{len(names)} x {kind} ({names[0]} {last}), each"
        lines.append(f"  {which}: {what}")
    return lines


def _why_one_layer(problem: Problem, name: str) -> list[str]:
    """A line that says why a layer with modules inside is one layer; nothing of other layers."""
    because = problem.graph.costs(name).whole_because
    return [f"{name} is one layer: {because}."] if because else []


def _help(problem: Problem, cure: str) -> str:
    leaner = f", an optimizer with less state{recompute_helps(problem.graph)}" if problem.training else ""
    return f"What would help: {cure}{', ' * bool(cure)}devices with more memory{leaner}, or a smaller batch."
