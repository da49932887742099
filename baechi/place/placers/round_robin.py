"""Round robin: each group on the next device. A baseline."""

from baechi.place.ledger import open_ledger
from baechi.place.listing.walk import walk
from baechi.place.placers.rescue import rescue
from baechi.place.problem import Problem
from baechi.records import Cluster, LayerGraph, Plan


def round_robin(graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
    """Deal the groups to the devices in topological order; see `Placer`."""
    problem = Problem(graph, cluster, optimizer)
    ledger = open_ledger(problem)
    turns = list(problem.devices)

    def choose(layer: int) -> int | None:
        for device in turns:
            if ledger.short_bytes(layer, device) <= 0:
                turns[:] = [*range(device + 1, len(turns)), *range(device + 1)]
                return device
        return None

    stuck = walk(problem, ledger, choose)
    if stuck is not None:
        return rescue(problem, "round-robin", stuck)
    return problem.plan("round-robin", ledger.device_of, range(len(problem.indexed)))
