"""Gradients of a tensor that several layers read are added up. Where, the stages decide.

    one stage reads it      the sum is made there, and sent once
    several stages do       each sends its own; the stage that made the tensor adds them up

A graph whose backward was captured counts each sum with the reader whose gradient comes to those that are
there. Others know of none.
"""

from collections.abc import Sequence

from baechi.cost.indexed_graph import FROM_HOST, IndexedGraph
from baechi.cost.roofline import Work
from baechi.simulate.indexed_plan import IndexedPlan


class MovedSums:
    """The sums that are made in another stage than that with which the graph counts them.

    Args:
        plan: the placement, indexed.
        stage_of: by layer, its stage; below 0 on the host.
    """

    def __init__(self, plan: IndexedPlan, stage_of: Sequence[int]) -> None:
        self._plan = plan
        self._less: dict[int, Work] = {}
        self._more: dict[int, Work] = {}
        captured = plan.graph.graph.get("backward_captured", False)
        for reader, maker, size_bytes in _moved(plan.indexed, stage_of) if captured else ():
            for found, layer in ((self._less, reader), (self._more, maker)):
                found[layer] = Work.of_sum(size_bytes, found.get(layer))

    def __contains__(self, layer: int) -> bool:
        """Whether sums are made before a layer's backward."""
        return layer in self._more

    def without(self, layer: int, host_s: float, own_s: float) -> tuple[float, float]:
        """What backward of a layer takes of the host and of its device, without sums made elsewhere."""
        less_host_s, less_s = self._taken(self._less.get(layer), layer)
        return max(0.0, host_s - less_host_s), max(0.0, own_s - less_s)

    def before(self, layer: int) -> tuple[float, float]:
        """What sums of its gradients take of the host and of the device before backward of a layer."""
        return self._taken(self._more.get(layer), layer)

    def _taken(self, work: Work | None, layer: int) -> tuple[float, float]:
        if work is None:
            return 0.0, 0.0
        plan = self._plan
        rate = plan.cluster.devices[plan.device_of[layer]].bytes_per_s
        host_s = work.kernels * plan.launch_s
        return host_s, work.moved_bytes / rate if rate else 0.0


def _moved(indexed: IndexedGraph, stage_of: Sequence[int]) -> list[tuple[int, int, int]]:
    """Readers with which a sum is counted, the makers that make it, and how large it is."""
    found = []
    for maker, readers, size_bytes in zip(indexed.source, indexed.graded, indexed.size_bytes, strict=True):
        if maker == FROM_HOST or stage_of[maker] < 0:
            continue
        last = {stage_of[reader]: reader for reader in readers}  # in backward, the first of its stage
        home = stage_of[maker]
        found += [
            (reader, maker, size_bytes)
            for stage, reader in last.items()
            if stage != home and reader != readers[-1]
        ]
    return found
