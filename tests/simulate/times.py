"""When everything runs, by another way: each span starts as soon as the rules let it, and lasts as long.

Where the host takes time to issue kernels, spans may start later and last longer, and are only held
to what they wait for.
"""

from collections.abc import Iterable
from math import isclose

from simulate.reading import Reading

from baechi.records import Plan, Timeline
from baechi.records.cluster import HOST


class Times:
    """One phase of a plan and its timeline, from `begin` on."""

    def __init__(self, read: Reading, phase: str, begin: float) -> None:
        self.read, self.phase, self.begin = read, phase, begin
        self.graph, self.cluster = read.graph, read.plan.cluster
        self.exact = not any(data.get(f"host_{phase}_s") for _, data in self.graph.nodes(data=True))

    def hold(self, span: tuple[float, float], waits_for: Iterable[float], lasts: float) -> float:
        """Hold a span to what it waits for, and to how long it takes; its end."""
        start, end = span
        first = max([self.begin, *waits_for])
        assert start >= first or isclose(start, first)
        assert end >= start + lasts or isclose(end, start + lasts)
        if self.exact:
            assert isclose(start, first) and isclose(end, start + lasts)
        return end

    def end(self, name: str) -> float:
        """When a layer has run; inputs are there from the beginning."""
        return self.read.ran[name, self.phase][1] if name in self.read.place else self.begin

    def check_layers(self) -> None:
        """A device runs its layers one after the other, in its order, each when its inputs are there."""
        for device in self.cluster.devices:
            free = self.begin
            order = self.read.plan.order_on(device.name)
            for name in order if self.phase == "forward" else reversed(order):
                seconds = self.graph.nodes[name].get(f"{self.phase}_s") or 0
                lasts = seconds[device.kind] if isinstance(seconds, dict) else seconds / device.speed
                waits_for = [free, *self.arrivals(name)]
                free = self.hold(self.read.ran[name, self.phase], waits_for, lasts)

    def arrivals(self, name: str) -> list[float]:
        """When what a layer waits for is there: in forward its inputs, in backward its gradients."""
        return self.inputs(name) if self.phase == "forward" else self.gradients(name)

    def inputs(self, name: str) -> list[float]:
        edges = self.graph.in_edges(name, data=True)
        found = [self.end(source) for source, _, data in edges if data.get("order_only")]
        here = self.read.home(name)
        for number, tensor in enumerate(self.read.tensors):
            if name in tensor.readers:
                near = self.read.home(tensor.source) == here
                found.append(self.end(tensor.source) if near else self.read.moved[number, here, "forward"][1])
        return found

    def gradients(self, name: str) -> list[float]:
        found = []
        for number, tensor in enumerate(self.read.tensors):
            if tensor.source == name:
                found += [self.end(reader) for reader in tensor.readers]
                found += [self.read.moved[number, d, "backward"][1] for d in self.read.targets(tensor)]
        return found

    def check_transfers(self) -> None:
        """A channel carries one transfer at a time, in the order in which they get ready."""
        channels: dict[str, list[tuple[float, float, float, float]]] = {}
        for (number, device, phase), (start, end) in self.read.moved.items():
            if phase != self.phase:
                continue
            tensor = self.read.tensors[number]
            ends = [self.read.home(tensor.source), device]
            ready = self.end(tensor.source)
            if phase == "backward":
                ends.reverse()
                ready = max(self.end(name) for name in self.read.readers_on(tensor, device))
            link = self.cluster.link_between(*ends)
            lasts = link.latency_s + tensor.size / link.bytes_per_s
            channel = ends[1] if self.cluster.reception == "serial" else ">".join(ends)
            channels.setdefault(channel, []).append((start, end, ready, lasts))
        for spans in channels.values():
            free, last_ready = self.begin, self.begin
            for start, end, ready, lasts in sorted(spans):
                free = self.hold((start, end), [free, ready], lasts)
                assert ready >= last_ready or not self.exact
                last_ready = ready


def check_times(plan: Plan, timeline: Timeline) -> None:
    """Judge a timeline; an assertion fails if it is none of the plan's."""
    read = Reading(plan, timeline)
    assert {(name, "forward") for name in plan.order} <= set(read.ran)
    assert len(read.ran) == len(plan.order) * (1 + plan.graph.training)
    sizes = [read.tensors[number].size for number, _, _ in read.moved]
    assert timeline.counters == {"transfers": len(sizes), "transfer_bytes": sum(sizes)}
    assert all(span.where.split(">")[0] in (HOST, *plan.cluster.names) for span in timeline.spans)
    over = 0.0
    for phase in ("forward", "backward") if plan.graph.training else ("forward",):
        times = Times(read, phase, over)
        times.check_layers()
        times.check_transfers()
        over = max([over, *(span.end_s for span in timeline.spans if span.phase == phase)])
    assert timeline.makespan_s == over
