"""What a person is told when no placement fits: which layer, how much is missing where, what helps."""

from collections.abc import Sequence

from baechi.errors import PlacementError
from baechi.place.ledger import Ledger
from baechi.place.task import ANYWHERE, Task
from baechi.units import format_bytes


def no_room(task: Task, ledger: Ledger, layer: int) -> PlacementError:
    """The error for a layer that found no room.

    Args:
        task: what is to be placed.
        ledger: memory, as it was when the layer found none.
        layer: the layer.
    """
    indexed = task.indexed
    group = indexed.group_of[layer]
    others = len(indexed.members[group]) - 1
    device = ledger.device_of[group]
    shared = f" and {others} more that must share its device" if others else ""
    if device == ANYWHERE:
        needed_bytes, devices = task.group_bytes[group].total_bytes, list(task.devices)
    else:  # its device is decided, and gets too full when it runs
        needed_bytes, devices = task.footprints[layer].forward_bytes, [device]
    pinned = ", pinned there" if task.pins[group] != ANYWHERE else ""
    return _refusal(
        task,
        indexed.names[layer],
        f"no room for layer {indexed.names[layer]}{shared}{pinned}: needs {format_bytes(needed_bytes)}, "
        "and copies of what it reads from other devices",
        {d: max(0, task.memory_bytes[d] - ledger.needed_bytes(d)) for d in devices},
        {d: ledger.short_bytes(layer, d) for d in devices},
        "another device",
    )


def no_single_device(task: Task, devices: Sequence[int], needed_bytes: int) -> PlacementError:
    """The error for a model that no device holds whole.

    Args:
        task: what is to be placed.
        devices: where it could lie.
        needed_bytes: what it needs on one of them.
    """
    groups = [group.total_bytes for group in task.group_bytes]
    largest = task.indexed.names[task.indexed.members[groups.index(max(groups))][0]]
    return _refusal(
        task,
        largest,
        f"no device holds all layers: they need {format_bytes(needed_bytes)}, "
        f"the largest part {largest} with {format_bytes(max(groups))}",
        {device: task.memory_bytes[device] for device in devices},
        {device: needed_bytes - task.memory_bytes[device] for device in devices},
        "a placer that uses several devices",
    )


def _refusal(
    task: Task,
    layer: str,
    what: str,
    free_bytes: dict[int, int],
    short_bytes: dict[int, int],
    cure: str,
) -> PlacementError:
    names, memory = task.cluster.names, task.memory_bytes
    lines = [
        f"  {names[device]}: {format_bytes(free)} of {format_bytes(memory[device])} free, "
        f"{format_bytes(short_bytes[device])} short"
        for device, free in free_bytes.items()
    ]
    least = sum([group.permanent_bytes for group in task.group_bytes])
    sums = f"All layers need at least {format_bytes(least)}, the devices have {format_bytes(sum(memory))}."
    leaner = ", an optimizer with less state" if task.training else ""
    help_ = f"What would help: {cure}, devices with more memory{leaner}, or a smaller batch."
    return PlacementError(
        "\n".join([what, *lines, sums, help_]),
        layer=layer,
        short_bytes={names[device]: short for device, short in short_bytes.items()},
    )
