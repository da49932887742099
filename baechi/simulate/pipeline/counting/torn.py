"""Regions that the model's code checkpoints, and that a placement tears: they lie in several stages, or read
what lies elsewhere, which is sent again when they run again."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from baechi.cost.indexed_graph import IndexedGraph
from baechi.simulate.indexed_plan import IndexedPlan


def regions_of(indexed: IndexedGraph) -> list[tuple[int, dict[int, float]]]:
    """The regions that run again."""
    index, found = {name: layer for layer, name in enumerate(indexed.names)}, []
    for layer, costs in enumerate(indexed.costs):
        parts = {index[name]: part for name, part in (costs.runs_again or {}).items() if name in index}
        if parts:
            found.append((layer, dict(sorted(parts.items()))))
    return found


class Torn:
    """The regions that lie in several stages, or read what lies on other devices.

    Args:
        regions: see `regions_of`.
        plan: the placement, indexed.
        stage_of: by layer, its stage; below 0 on the host.

    Attributes:
        region_of: by layer, the number of its region.
    """

    def __init__(
        self, regions: Iterable[tuple[int, dict[int, float]]], plan: IndexedPlan, stage_of: Sequence[int]
    ) -> None:
        self._plan = plan
        self.region_of: dict[int, int] = {}
        self._members: list[dict[int, float]] = []
        self._less: dict[int, tuple[float, float]] = {}
        for layer, parts in regions:
            members = {one: part for one, part in parts.items() if stage_of[one] >= 0}
            if members and self._is_torn(members, layer, stage_of):
                self.region_of.update(dict.fromkeys((*members, layer), len(self._members)))
                self._members.append(members)
                self._less[layer] = self._taken(members, plan.device_of[layer])

    def _is_torn(self, members: dict[int, float], layer: int, stage_of: Sequence[int]) -> bool:
        device = self._plan.device_of[layer]
        return len({stage_of[one] for one in (*members, layer)}) > 1 or bool(
            self.brought(device, members.items())
        )

    def _taken(self, members: dict[int, float], device: int) -> tuple[float, float]:
        """What a region takes of the host, and of one device."""
        host_s, seconds = self._plan.host_s["forward"], self._plan.seconds["forward"][device]
        taken = [(part * host_s[one], part * (seconds[one] or 0.0)) for one, part in members.items()]
        return sum([host for host, _ in taken]), sum([own for _, own in taken])

    def without(self, layer: int, host_s: float, own_s: float) -> tuple[float, float]:
        """What backward of a layer takes of the host and of its device, without its region."""
        less_host_s, less_s = self._less.get(layer, (0.0, 0.0))
        return max(0.0, host_s - less_host_s), max(0.0, own_s - less_s)

    def stretches(self, region: int) -> Iterator[tuple[int, list[tuple[int, float]]]]:
        """The devices of a region in the order of the code, with its layers and how much of each runs."""
        device_of = self._plan.device_of
        for device, layers in groupby(self._members[region].items(), lambda one: device_of[one[0]]):
            yield device, list(layers)

    def brought(self, device: int, layers: Iterable[tuple[int, float]]) -> list[int]:
        """The tensors that come from elsewhere to a stretch."""
        indexed, device_of = self._plan.indexed, self._plan.device_of
        read = dict.fromkeys([tensor for layer, _ in layers for tensor in indexed.reads[layer]])
        return [one for one in read if indexed.source[one] < 0 or device_of[indexed.source[one]] != device]
