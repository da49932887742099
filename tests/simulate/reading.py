"""A plan and its timeline as the definitions read them: which tensor each span moved, and how large it is.

Uses the records and nothing else of baechi, so that what is judged by it is judged from outside.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any

from baechi.records import Plan, Span, Timeline


@dataclass(frozen=True)
class Tensor:
    """What a node hands to others under one id, in bytes."""

    source: str
    size: int
    readers: tuple[str, ...]


class Reading:
    """One plan and its timeline.

    `tensors` are those of the graph, those that nobody reads left out. `ran` has the span of each
    layer by phase; `moved` that of each tensor by device and phase: `moved[number, device, "backward"]`
    brought its gradient back from there.
    """

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        self.plan, self.graph = plan, plan.graph
        self.place = {name: index for index, name in enumerate(plan.order)}
        self.tensors = [tensor for source in self.graph for tensor in self._made_by(source)]
        spans = [span for span in timeline.spans if span.kind == "compute"]
        self.ran = {(span.layer, span.phase): (span.start_s, span.end_s) for span in spans}
        assert len(self.ran) == len(spans), "a layer runs twice"
        self.moved: dict[tuple[int, str, str], tuple[float, float]] = {}
        self._match([span for span in timeline.spans if span.kind == "transfer"])

    def home(self, name: str) -> str:
        """Where a node lies."""
        return self.plan.device_of.get(name, "host")

    def readers_on(self, tensor: Tensor, device: str) -> list[str]:
        """Who reads a tensor there, in the plan's order."""
        there = [reader for reader in tensor.readers if self.home(reader) == device]
        return sorted(there, key=self.place.__getitem__)

    def targets(self, tensor: Tensor) -> list[str]:
        """The devices that a tensor travels to."""
        devices = {self.home(reader) for reader in tensor.readers} - {self.home(tensor.source)}
        return sorted(devices)

    def _made_by(self, source: str) -> list[Tensor]:
        sizes: dict[Any, float] = {}
        readers: dict[Any, list[str]] = {}
        for _, target, data in self.graph.out_edges(source, data=True):
            if not data.get("order_only"):
                key = str(data.get("tensor"))
                sizes[key] = max(sizes.get(key, 0), data.get("bytes", 0))
                readers.setdefault(key, []).append(target)
        return [Tensor(source, ceil(size), tuple(readers[key])) for key, size in sizes.items()]

    def _match(self, spans: list[Span]) -> None:
        """Find each tensor's span: those of one source on one link go in the order in which they queue."""
        free: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
        for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
            free.setdefault((span.layer, span.where, span.phase), []).append((span.start_s, span.end_s))
        for phase in ("forward", "backward") if self.graph.training else ("forward",):
            for number, device in self._in_queue_order(phase):
                source = self.tensors[number].source
                ends = [self.home(source), device]
                where = ">".join(ends if phase == "forward" else ends[::-1])
                self.moved[number, device, phase] = free[source, where, phase].pop(0)
        assert not any(free.values()), "something travels that nobody reads"

    def _in_queue_order(self, phase: str) -> list[tuple[int, str]]:
        """Tensors and where they go, or come back from: who is ready first, then who is needed first."""
        found = []
        for number, tensor in enumerate(self.tensors):
            for device in self.targets(tensor):
                readers = self.readers_on(tensor, device)
                first = self.place[readers[0]]
                if phase == "forward":
                    found.append((0.0, first, number, device))
                elif tensor.source in self.place:
                    ready = max(self.ran[name, phase][1] for name in readers)
                    found.append((ready, -first, number, device))
        return [(number, device) for *_, number, device in sorted(found)]
