"""m-TOPO: cut the topological order into pieces of about equal memory, one for each device.

Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs", SoCC 2020. The cap of a
device is the n-th part of all memory needed, plus the largest group. With that cap n devices always
suffice, if each has that much memory. The paper's code differs in three ways. Here groups are measured by
the same bytes in the cap and in the walk (permanent and transient, each group as if alone). Devices
never exceed their memory. Groups left over at the end go to any device where they fit.
"""

from baechi.gc_pause import uncollected
from baechi.place.ledger import open_ledger
from baechi.place.listing.fill import Filling, filled
from baechi.place.listing.walk import walk
from baechi.place.placers.rescue import rescue
from baechi.place.problem import Problem
from baechi.records import Cluster, LayerGraph, Plan


@uncollected
def m_topo(graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
    """Place by m-TOPO; see `Placer`."""
    problem = Problem(graph, cluster, optimizer)
    cap = cap_bytes(problem)
    device_of = filled(problem, cap)
    if device_of is not None:
        return problem.plan("m-topo", device_of, range(len(problem.indexed)))
    ledger = open_ledger(problem)
    stuck = walk(problem, ledger, Filling(problem, ledger, [cap] * len(cluster)).choose)
    if stuck is not None:
        return rescue(problem, "m-topo", stuck)
    return problem.plan("m-topo", ledger.device_of, range(len(problem.indexed)))


def cap_bytes(problem: Problem) -> float:
    """The bytes of each device that m-TOPO fills."""
    sizes = [group.total_bytes for group in problem.group_bytes]
    return sum(sizes) / len(problem.cluster) + max(sizes, default=0)
