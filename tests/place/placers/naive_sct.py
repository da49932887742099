"""The list scheduling of SCT as its definition reads, with the favourite children given.

A device is awake while the favourite child of its last layer is ready, and could start on no other device
earlier. It then runs urgent layers or that child. All else is as in `NaiveETF`.
"""

from collections.abc import Iterator, Mapping

from place.placers.naive_etf import NaiveETF

from baechi.records import Cluster, LayerGraph

Choice = tuple[float, int, float, int, str, str]


class NaiveSCT(NaiveETF):
    """One run; `order` lists `(layer, device)` as they were decided."""

    def __init__(self, graph: LayerGraph, cluster: Cluster, child_of: Mapping[str, str]) -> None:
        self.child_of = child_of
        super().__init__(graph, cluster)

    def choices(self) -> Iterator[Choice]:
        free = list(super().choices())
        last = {device: layer for layer, device in self.order}
        for place, device in enumerate(self.cluster.names):
            own = [choice for choice in free if choice[-1] == device]
            child = self.child_of.get(last.get(device, ""), "")
            starts = {other: start for start, *_, layer, other in free if layer == child}
            if starts and starts[device] == min(starts.values()):
                depends_on = [self.end[parent] for parent in self.graph.predecessors(child)]
                if min(own)[0] >= max(self.device_free[device], *depends_on):  # nothing could start before
                    yield self.awake(free, child, device, place, until=starts[device])
                    continue
            yield from own

    def awake(self, free: list[Choice], child: str, device: str, place: int, until: float) -> Choice:
        urgent: dict[str, float] = {}
        for start, *_, layer, _ in free:
            urgent[layer] = max(urgent.get(layer, 0.0), start)
        found = [(at, self.rank[name], name) for name, at in urgent.items() if name != child and at <= until]
        start, rank, layer = min(found, default=(until, self.rank[child], child))
        return start, rank, start + self.work(layer, device), place, layer, device
