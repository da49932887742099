"""m-ETF: the layer that can start earliest runs next, on the device where it can, if it fits there.

Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs", SoCC 2020, after ETF:
Hwang, Chow, Anger, Lee, SIAM J. Comput. 18(2), 1989. Ties go to the layer that is first in
topological order, then to the device that ends it sooner, then to the first device.

A group of layers that share a device is placed when its first layer is the next to start, and only
where all of it fits. If that layer chose as if it were alone, groups with small first layers would
gather on the device that is free at the beginning (up to six times slower). So the group goes where

    earliest start of its first layer  +  work of other groups placed there that has still to run
                                       +  its own work there

is least. That is the time when the device would finish the group if it never had to wait for inputs.
"""

from baechi.gc_pause import uncollected
from baechi.place.ledger import open_ledger
from baechi.place.listing.start_earliest import Listing
from baechi.place.placers.rescue import rescue
from baechi.place.problem import Problem
from baechi.records import Cluster, LayerGraph, Plan


@uncollected
def m_etf(graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
    """Place by m-ETF; see `Placer`."""
    problem = Problem(graph, cluster, optimizer)
    ledger = open_ledger(problem)
    listing = Listing(problem, ledger, ends_group_first)
    if not listing.fill():
        ran = set(listing.order)
        stuck = next(layer for layer in range(len(problem.indexed)) if layer not in ran)
        return rescue(problem, "m-etf", stuck)
    return problem.plan("m-etf", ledger.device_of, listing.order)


def ends_group_first(listing: Listing, layer: int, devices: list[int]) -> int:
    """The device that would end a group of layers first."""
    problem, clock = listing.problem, listing.clock
    members = problem.indexed.members[problem.indexed.group_of[layer]]

    def end_s(device: int) -> float:
        start_s = max(clock.free_s[device], clock.inputs_there_s(layer, device))
        return start_s + listing.promised_s[device] + sum([problem.work_s[device][m] for m in members])

    return min(devices, key=end_s)
