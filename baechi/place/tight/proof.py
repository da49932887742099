"""Refuse without a search: one sum of bytes shows that no placement can fit."""

from collections.abc import Sequence

from baechi.errors import PlacementError
from baechi.place.problem import ANYWHERE, Problem
from baechi.place.tight.least_bytes import LeastBytes, all_together, least_bytes, of_members
from baechi.place.tight.refusal import refusal
from baechi.units import format_bytes

_SHOWN = 4
"""So many members of a group are named."""


def prove(problem: Problem) -> None:
    """Refuse a problem that no placement can fit."""
    least = least_bytes(problem)
    for group, part in enumerate(least):
        allowed = problem.devices if problem.pins[group] == ANYWHERE else [problem.pins[group]]
        if all(part.alone_bytes > problem.memory_bytes[device] for device in allowed):
            raise _too_large(problem, group, part, allowed)
    for device in problem.devices:
        _prove_pins(problem, least, device)
    needed, there = all_together(least), sum(problem.memory_bytes)
    if needed > there:
        raise _all_too_large(problem, least, needed)


def _too_large(problem: Problem, group: int, part: LeastBytes, allowed: Sequence[int]) -> PlacementError:
    members = problem.indexed.members[group]
    sizes = {layer: of_members(problem, [layer]).alone_bytes for layer in members}
    layer = max(members, key=sizes.__getitem__)
    memory = {device: problem.memory_bytes[device] for device in allowed}
    where = "its device" if problem.pins[group] != ANYWHERE else "every device"
    pinned = ", pinned there," if problem.pins[group] != ANYWHERE else ""
    if sizes[layer] > max(memory.values()):
        name = problem.indexed.names[layer]
        costs = problem.graph.costs(name)
        called = f"layer {name}" if costs.kind == "layer" else _called(problem, name)
        what = f"{called}{pinned} is larger than {where}: it needs at least {format_bytes(sizes[layer])}"
        splits = costs.splits
        how = " (split='auto')" if splits is not None and splits["shapes"] and not splits["refused"] else ""
        needed, cure = sizes[layer], f"splitting the layer{how}" if costs.kind == "layer" else ""
    else:
        names = [problem.indexed.names[member] for member in members]
        name, shown = names[0], [_called(problem, one) for one in names[:_SHOWN]]
        shown += ["..."] if len(names) > _SHOWN else []
        tied = _tied(problem, names)
        why = "which share a weight" if tied else "which the model's code joins"
        what = (
            f"{len(names)} parts that must share a device{pinned} ({', '.join(shown)}, {why}) are larger "
            f"than {where}: they need at least {format_bytes(part.alone_bytes)} together"
        )
        needed, cure = part.alone_bytes, f"not tying the weights of {_listed(tied)}" if tied else ""
    return refusal(problem, name, what, memory, {d: needed - memory[d] for d in allowed}, cure)


def _called(problem: Problem, name: str) -> str:
    costs = problem.graph.costs(name)
    return name if costs.kind == "layer" else f"functional op {costs.type}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_SHOWN])}{', ...' * (len(names) > _SHOWN)}"


def _tied(problem: Problem, names: Sequence[str]) -> list[str]:
    """The layers that share a weight: one of them owns that under the name of another one, too."""
    modules = {problem.graph.module_of(name): name for name in names}
    found: dict[str, None] = {}
    for name in names:
        for weight in problem.graph.costs(name).weights or ():
            other = modules.get(weight.rpartition(".")[0], name)
            if other != name:
                found.update({name: None, other: None})
    return list(found)


def _prove_pins(problem: Problem, least: Sequence[LeastBytes], device: int) -> None:
    pinned = [group for group, pin in enumerate(problem.pins) if pin == device]
    if len(pinned) < 2:
        return
    together = least[pinned[0]]
    for group in pinned[1:]:
        together = together.with_other(least[group])
    needed, memory = together.alone_bytes, problem.memory_bytes[device]
    if needed > memory:
        largest = max(pinned, key=lambda group: least[group].alone_bytes)
        layers = sum([len(problem.indexed.members[group]) for group in pinned])
        name = problem.indexed.names[problem.indexed.members[largest][0]]
        raise refusal(
            problem,
            name,
            f"{layers} layers are pinned to {problem.cluster.names[device]}, {name} the largest: they need "
            f"at least {format_bytes(needed)} together",
            {device: memory},
            {device: needed - memory},
            "fewer pins",
        )


def _all_too_large(problem: Problem, least: Sequence[LeastBytes], needed: int) -> PlacementError:
    largest = max(range(len(least)), key=lambda group: least[group].alone_bytes)
    name, size = problem.indexed.names[problem.indexed.members[largest][0]], least[largest].alone_bytes
    there = sum(problem.memory_bytes)
    each = -(-(needed - there) // len(problem.devices))
    return refusal(
        problem,
        name,
        f"all layers together are larger than all devices together, by {format_bytes(needed - there)}: "
        f"they need at least {format_bytes(needed)}, the devices have {format_bytes(there)}; the largest is "
        f"{name} with {format_bytes(size)}",
        dict(enumerate(problem.memory_bytes)),
        dict.fromkeys(problem.devices, each),
        "another device",
    )
