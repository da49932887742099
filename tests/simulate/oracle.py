"""Peaks by another way: every storage is an interval read off the spans, and intervals are added up.

Uses the rules as `baechi.simulate.memory` states them and nothing of its code. Times must be above 0,
or it is open which of two things at one time comes first; and a source must make one tensor only,
or its spans cannot be told apart.
"""

from math import ceil, inf

from baechi.cost.memory import footprints
from baechi.records import Plan, Timeline

Interval = tuple[float, float, int]


class Oracle:
    """One plan and its timeline."""

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        self.plan, self.graph, self.table = plan, plan.graph, footprints(plan.graph)
        self.ran = {(s.layer, s.phase): (s.start_s, s.end_s) for s in timeline.spans if s.kind == "compute"}
        moves = [span for span in timeline.spans if span.kind == "transfer"]
        self.moved = {(s.layer, s.where, s.phase): (s.start_s, s.end_s) for s in moves}
        self.intervals: dict[str, list[Interval]] = {name: [] for name in plan.cluster.names}

    def size(self, name: str) -> int:
        edges = self.graph.out_edges(name, data=True)
        return max((ceil(data["bytes"]) for *_, data in edges if not data.get("order_only")), default=0)

    def readers(self, name: str) -> list[str]:
        edges = self.graph.out_edges(name, data=True)
        return [target for _, target, data in edges if not data.get("order_only")]

    def is_view(self, name: str) -> bool:
        handed_on = self.size(name) if self.readers(name) else 1
        return handed_on > (self.graph.nodes[name].get("output_bytes") or 0)

    def needs_inputs_until(self, name: str) -> float:
        end = self.ran[name, "forward"][1]
        return max(end, self.output_until(name)) if self.is_view(name) else end

    def output_until(self, name: str) -> float:
        here = self.plan.device_of[name]
        until = [inf] if not self.readers(name) else []
        for reader in self.readers(name):
            there = self.plan.device_of[reader]
            if there == here:
                until.append(self.needs_inputs_until(reader))
            else:
                until.append(self.moved[name, f"{here}>{there}", "forward"][1])
        return max(until)

    def add_layers(self) -> None:
        training = self.graph.training
        for name, part in self.table.items():
            intervals = self.intervals[self.plan.device_of[name]]
            start, end = self.ran[name, "forward"]
            intervals += [(-1, inf, part.resident_bytes), (start, end, part.temp_bytes)]
            intervals.append((start, self.output_until(name), part.output_bytes))
            if training:
                begin, over = self.ran[name, "backward"]
                intervals += [(start, over, part.saved_bytes), (begin, over, part.temp_bytes)]
                received = self.received_bytes(name)
                intervals.append((begin, over, max(0, part.upstream_bytes - received)))

    def received_bytes(self, name: str) -> int:
        devices = {self.plan.device_of[reader] for reader in self.readers(name)}
        return self.size(name) * len(devices - {self.plan.device_of[name]})

    def add_copies(self) -> None:
        for source in self.graph:
            here = self.plan.device_of.get(source, "host")
            for there in {self.plan.device_of[reader] for reader in self.readers(source)} - {here}:
                readers = [r for r in self.readers(source) if self.plan.device_of[r] == there]
                self.add_copy(source, here, there, readers)

    def add_copy(self, source: str, here: str, there: str, readers: list[str]) -> None:
        start, _ = self.moved[source, f"{here}>{there}", "forward"]
        if not self.graph.training:
            gone = inf if here == "host" else self.output_until(source)
            until = max(gone, *(self.needs_inputs_until(reader) for reader in readers))
        elif here == "host":
            until = max(self.ran[reader, "backward"][1] for reader in readers)
        else:
            begin, until = self.moved[source, f"{there}>{here}", "backward"]
            self.intervals[here].append((begin, self.ran[source, "backward"][1], self.size(source)))
        self.intervals[there].append((start, until, self.size(source)))

    def peak(self, device: str) -> int:
        intervals = self.intervals[device]
        times = [start for start, _, _ in intervals]
        return max((sum(s for a, b, s in intervals if a <= time < b) for time in times), default=0)


def peaks_from_spans(plan: Plan, timeline: Timeline) -> dict[str, int]:
    """The peak of each device."""
    oracle = Oracle(plan, timeline)
    oracle.add_layers()
    oracle.add_copies()
    return {device: oracle.peak(device) for device in plan.cluster.names}
