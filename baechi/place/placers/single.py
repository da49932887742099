"""Everything on one device: what every other plan must beat."""

from baechi.errors import PlacementError
from baechi.place.ledger import open_ledger
from baechi.place.task import ANYWHERE, Task
from baechi.place.tight.refusal import no_single_device
from baechi.records import Cluster, LayerGraph, Plan


def single(graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
    """Place all layers on one device; see `Placer`.

    Args:
        graph: the layer graph.
        cluster: the devices; of those that hold everything, the fastest is taken, then the one with
            most memory, then the first.
        optimizer: whose state counts in training.

    Returns:
        A plan in topological order.

    Raises:
        PlacementError: no device holds everything, or layers are pinned to several.
    """
    task = Task(graph, cluster, optimizer)
    pinned = pinned_devices(task)
    if len(pinned) > 1:
        names = " and ".join([repr(cluster.names[device]) for device in pinned])
        first = task.indexed.names[task.indexed.members[task.pins.index(pinned[1])][0]]
        raise PlacementError(f"layers are pinned to {names}: they cannot share one device", layer=first)
    device = fastest_that_holds_all(task)
    if device is None:
        raise no_single_device(task, pinned or task.devices, bytes_of_all(task))
    return task.plan("single", [device] * len(task.indexed.members), range(len(task.indexed)))


def fastest_that_holds_all(task: Task) -> int | None:
    """The best device for everything.

    Args:
        task: what is to be placed.

    Returns:
        A device; None if memory or pins leave none.
    """
    needed_bytes, pinned = bytes_of_all(task), pinned_devices(task)
    allowed = pinned or list(task.devices)
    holding = [d for d in allowed if task.memory_bytes[d] >= needed_bytes and len(pinned) <= 1]
    return min(holding, key=lambda d: (sum(task.work_s[d]), -task.memory_bytes[d]), default=None)


def pinned_devices(task: Task) -> list[int]:
    """The devices that layers are pinned to."""
    return sorted({pin for pin in task.pins if pin != ANYWHERE})


def bytes_of_all(task: Task) -> int:
    """The bytes that all layers need on one device."""
    ledger = open_ledger(task, [0] * len(task.indexed.members))
    for layer in range(len(task.indexed)):
        ledger.run(layer)
    return ledger.needed_bytes(0)
