"""Everything on one device: what every other plan must beat."""

from baechi.errors import PlacementError
from baechi.place.ledger import open_ledger
from baechi.place.problem import ANYWHERE, Problem
from baechi.place.tight.refusal import no_single_device
from baechi.records import Cluster, LayerGraph, Plan


def single(graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
    """Place all layers on one device; see `Placer`."""
    problem = Problem(graph, cluster, optimizer)
    pinned = pinned_devices(problem)
    if len(pinned) > 1:
        names = " and ".join([repr(cluster.names[device]) for device in pinned])
        first = problem.indexed.names[problem.indexed.members[problem.pins.index(pinned[1])][0]]
        raise PlacementError(f"layers are pinned to {names}: they cannot share one device", layer=first)
    device = fastest_that_holds_all(problem)
    if device is None:
        raise no_single_device(problem, pinned or problem.devices, bytes_of_all(problem))
    return problem.plan("single", [device] * len(problem.indexed.members), range(len(problem.indexed)))


def fastest_that_holds_all(problem: Problem) -> int | None:
    """The best device for everything."""
    needed_bytes, pinned = bytes_of_all(problem), pinned_devices(problem)
    allowed = pinned or list(problem.devices)
    holding = [d for d in allowed if problem.memory_bytes[d] >= needed_bytes and len(pinned) <= 1]
    return min(holding, key=lambda d: (sum(problem.work_s[d]), -problem.memory_bytes[d]), default=None)


def pinned_devices(problem: Problem) -> list[int]:
    """The devices that layers are pinned to."""
    return sorted({pin for pin in problem.pins if pin != ANYWHERE})


def bytes_of_all(problem: Problem) -> int:
    """The bytes that all layers need on one device."""
    ledger = open_ledger(problem, [0] * len(problem.indexed.members))
    for layer in range(len(problem.indexed)):
        ledger.run(layer)
    return ledger.needed_bytes(0)
