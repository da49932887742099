"""Everything on one device: what every other plan must beat."""

from baechi.errors import PlacementError
from baechi.place.ledger import Ledger
from baechi.place.refusal import no_single_device
from baechi.place.task import ANYWHERE, Task
from baechi.records import Cluster, LayerGraph, Plan


def single(graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
    """Place all layers on one device; see `Placer`.

    Args:
        graph: the layer graph.
        cluster: the devices; the one with most memory is taken, the first of them among equals.
        optimizer: whose state counts in training.

    Returns:
        A plan in topological order.

    Raises:
        PlacementError: no device holds everything, or layers are pinned to several.
    """
    task = Task(graph, cluster, optimizer)
    pinned = sorted({pin for pin in task.pins if pin != ANYWHERE})
    if len(pinned) > 1:
        names = " and ".join(repr(cluster.names[device]) for device in pinned)
        raise PlacementError(f"layers are pinned to {names}: they cannot all lie on one device")
    devices = pinned or task.devices
    largest = max(devices, key=lambda device: task.memory_bytes[device])
    ledger = Ledger(task, [largest] * len(task.indexed.members))
    for layer in range(len(task.indexed)):
        ledger.run(layer)
    if ledger.needed_bytes(largest) > task.memory_bytes[largest]:
        raise no_single_device(task, devices, ledger.needed_bytes(largest))
    return task.plan("single", ledger.device_of, range(len(task.indexed)))
