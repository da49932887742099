"""The critical path of a step: the spans that, one after the other, make it as long as it is.

The path is found backwards from the span that ends last. The cause of a span's start is whichever of
these ended last before it began:

    data    the span that made what it reads: an earlier layer, a transfer; in backward, gradients
    queue   the span before it on its device, or on its channel (of transfers)
    turn    for a span of backward: the last span of forward
    start   none of these: the path begins here

A gap between the two is a wait for the host, which had not issued the kernel yet. Work between forward and
backward, such as the loss, is not part of the step.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from baechi.records.plan import Plan
from baechi.records.timeline import Phase, Span, Timeline

Cause = Literal["start", "data", "queue", "turn"]

_CLOSE = 1e-9  # as a fraction of the step: times nearer than this count as equal


@dataclass(frozen=True, slots=True)
class Stretch:
    """A span of the critical path.

    Args:
        span: what ran.
        cause: why it did not start earlier; see above.
        idle_s: from the end of the span that it waited for to its own start.
        issuing_s: the part of the span during which the device waited for the host to issue kernels.
    """

    span: Span
    cause: Cause
    idle_s: float
    issuing_s: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it ran, without waits for the host."""
        return self.span.end_s - self.span.start_s - self.issuing_s

    @property
    def host_s(self) -> float:
        """How long its device waited for the host, before and during it."""
        return self.issuing_s + (0.0 if self.cause == "turn" else self.idle_s)


def critical_path(plan: Plan, timeline: Timeline) -> tuple[Stretch, ...]:
    """What made a step as long as it was."""
    index = _Index(plan, timeline)
    span = max(index.spans, key=lambda span: (span.end_s, span.start_s), default=None)
    path: list[Stretch] = []
    passed: set[int] = set()
    while span is not None and id(span) not in passed:
        passed.add(id(span))
        stretch, span = index.before(span)
        path.append(stretch)
    return tuple(path[::-1])


def waits(plan: Plan, timeline: Timeline) -> dict[int, tuple[Cause, Span | None]]:
    """What each span of a step waited for."""
    index = _Index(plan, timeline)
    found = {id(span): index.before(span) for span in index.spans}
    return {key: (stretch.cause, before) for key, (stretch, before) in found.items()}


class _Index:
    """The spans of a timeline, indexed by what each may have waited for."""

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        self._plan = plan
        self.spans = [s for s in timeline.spans if s.phase != "other" and s.kind != "wait"]
        self._close_s = _CLOSE * timeline.makespan_s
        self._ran: dict[tuple[str, Phase], list[Span]] = {}  # computing, by layer
        self._moved: dict[tuple[str, Phase], list[Span]] = {}  # transfers, by layer
        self._earlier: dict[int, Span | None] = {}  # the one before on its device or channel, by id
        self._arrived_at: dict[str, list[Span]] = {}  # transfers, by target
        self._computed_on: dict[str, list[Span]] = {}  # computing, by device
        last: dict[str, Span] = {}
        for span in self.spans:
            table = self._ran if span.kind == "compute" else self._moved
            table.setdefault((span.layer, span.phase), []).append(span)
            by_device = self._arrived_at if span.kind == "transfer" else self._computed_on
            by_device.setdefault(span.where.rpartition(">")[2], []).append(span)
            queue = self._queue(span)
            self._earlier[id(span)] = last.get(queue)
            last[queue] = span
        for spans in (*self._arrived_at.values(), *self._computed_on.values()):
            spans.sort(key=lambda span: span.end_s)
        forward = [span for span in self.spans if span.phase == "forward"]
        self._forward_end = max(forward, key=lambda span: span.end_s, default=None)
        self._start_s = min([span.start_s for span in self.spans], default=0.0)
        self._around = [s for s in timeline.spans if s.phase == "other" and s.kind == "compute"]
        # work between forward and backward (the loss) is not part of the step, and no wait for the host
        self._back_s = min([span.start_s for span in self.spans if span.phase == "backward"], default=0.0)

    def before(self, span: Span) -> tuple[Stretch, Span | None]:
        """The stretch of a span, with its cause; and the span before it on the path."""
        start_s = span.start_s
        known = [s for s in self._sources(span) if s.end_s <= start_s + self._close_s]
        data = _last(known) if known else self._guess(span)
        turn = self._forward_end if span.phase == "backward" else None
        queue = self._earlier[id(span)]
        named: list[tuple[Cause, Span | None]] = [("data", data), ("turn", turn), ("queue", queue)]
        causes = [(cause, s) for cause, s in named if s is not None and s.end_s <= start_s + self._close_s]
        if not causes:
            idle_s = self._idle_s(span, self._start_s)
            return Stretch(span, "start", idle_s, self._issuing_s(span)), None
        last_s = max([s.end_s for _, s in causes])
        cause, found = next((c, s) for c, s in causes if s.end_s >= last_s - self._close_s)
        before_s = found.end_s if cause != "turn" else max(found.end_s, self._back_s)
        return Stretch(span, cause, self._idle_s(span, before_s), self._issuing_s(span)), found

    def _idle_s(self, span: Span, since_s: float) -> float:
        """How long a span waited since some moment, without what its device did around the model then."""
        idle_s = span.start_s - since_s
        if idle_s <= self._close_s:
            return 0.0
        if span.kind == "compute":
            own = [other for other in self._around if other.where == span.where]
            between = [min(o.end_s, span.start_s) - max(o.start_s, since_s) for o in own]
            idle_s -= sum([part_s for part_s in between if part_s > 0])
        return max(0.0, idle_s)

    def _guess(self, span: Span) -> Span | None:
        """What a span probably read, where names do not say it: a measured run names no glue, for one.

        For a layer this is the last transfer to its device, for a transfer the last layer on its source.
        """
        if span.layer in self._plan.graph and span.kind == "compute" and not self._reads(span):
            return None
        table = self._arrived_at if span.kind == "compute" else self._computed_on
        spans = table.get(span.where.partition(">")[0], [])
        place = bisect_right(spans, span.start_s + self._close_s, key=lambda s: s.end_s)
        return spans[place - 1] if place else None

    def _reads(self, span: Span) -> bool:
        """Whether a layer reads any other layer's output, or in backward its gradient."""
        if span.phase == "forward":
            return self._plan.graph.in_degree(span.layer) > 0
        return bool(self._readers(span.layer))

    def _issuing_s(self, span: Span) -> float:
        """How long a device waited for the host while a layer ran: what its kernels alone do not explain."""
        graph = self._plan.graph
        known = span.layer in graph and span.where in self._plan.cluster.names  # a measured step's may not be
        if span.kind != "compute" or not known:
            return 0.0
        host_s = graph.amount(span.layer, f"host_{span.phase}_s")
        if not host_s:
            return 0.0
        device = self._plan.cluster.device(span.where)
        alone_s = graph.seconds(span.layer, f"{span.phase}_s", device.kind, device.speed)
        return min(host_s, max(0.0, span.end_s - span.start_s - alone_s))

    def _queue(self, span: Span) -> str:
        """What a span occupies alone: its device, its link, or the receiving end of its target."""
        if span.kind == "compute" or self._plan.cluster.reception == "free":
            return span.where
        return ">" + span.where.partition(">")[2]

    def _sources(self, span: Span) -> Iterator[Span]:
        """What a span reads from: layers on its device, transfers to it."""
        graph, layer, phase = self._plan.graph, span.layer, span.phase
        if layer not in graph:
            return
        if span.kind == "transfer":
            makers = [layer] if phase == "forward" else self._readers(layer)
            here = span.where.partition(">")[0]
            ran = chain.from_iterable(self._makers(maker, phase, set()) for maker in makers)
            yield from (s for s in ran if s.where == here and s.kind == "compute")
        elif phase == "forward":
            for parent in graph.predecessors(layer):
                ordered = graph.edge_costs(parent, layer).order_only
                for source in self._makers(parent, phase, set()):
                    if ordered or _ends_at(source, span.where):
                        yield source
        else:
            yield from (s for s in self._moved.get((layer, phase), ()) if _ends_at(s, span.where))
            for reader in self._readers(layer):
                yield from (s for s in self._makers(reader, phase, set()) if s.where == span.where)

    def _readers(self, layer: str) -> list[str]:
        """The layers that read a layer's output."""
        graph = self._plan.graph
        return [
            reader for reader in graph.successors(layer) if not graph.edge_costs(layer, reader).order_only
        ]

    def _makers(self, layer: str, phase: Phase, passed: set[str]) -> Iterator[Span]:
        """The spans of a layer; of those before it if it has none (a view runs no kernel)."""
        passed.add(layer)
        ran, moved = self._ran.get((layer, phase), []), self._moved.get((layer, phase), [])
        yield from ran
        yield from moved if phase == "forward" else ()
        if not ran and not moved:
            graph = self._plan.graph
            further = graph.predecessors(layer) if phase == "forward" else self._readers(layer)
            for other in further:
                if other not in passed:
                    yield from self._makers(other, phase, passed)


def _last(spans: list[Span]) -> Span | None:
    """The span that ends last."""
    return max(spans, key=lambda span: span.end_s, default=None)


def _ends_at(span: Span, device: str) -> bool:
    """Whether a span computed on a device, or was a transfer to it ("source>device")."""
    return span.where == device or span.where.endswith(f">{device}")
