"""Peaks by another way: every storage is an interval read off the spans, and intervals are added up.

Uses the rules as the documentation states them and nothing of the code that it judges, not even its
table of bytes. What begins and ends at one time has no interval to lie in, so where layers or
transfers take no time this is a bound from below; elsewhere it is exact.
"""

from dataclasses import dataclass
from math import ceil, inf

from simulate.reading import Reading, Tensor

from baechi.records import Plan, Timeline

STATE = {"momentum": 1, "adagrad": 1, "rmsprop": 1, "adadelta": 2, "adam": 2, "adamw": 2}
"""What an optimizer keeps, in bytes for each byte of gradient; others keep nothing."""

UPDATE = {"adam": 1, "adamw": 1, "rmsprop": 1, "adagrad": 2, "adadelta": 2}
"""What its step needs besides."""


@dataclass(frozen=True)
class Interval:
    """Bytes that are there from a time to another; whoever is named finds them there when it runs."""

    start: float
    end: float
    size: int
    users: frozenset[str] = frozenset()


class Oracle:
    """One plan and its timeline."""

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        self.read = Reading(plan, timeline)
        self.graph, self.training = plan.graph, plan.graph.training
        self.intervals: dict[str, list[Interval]] = {name: [] for name in plan.cluster.names}
        self.made: dict[str, list[Tensor]] = {name: [] for name in plan.graph}
        self.until: dict[str, float] = {}
        self.holders: dict[str, list[str]] = {name: [] for name in plan.graph}
        for name, data in plan.graph.nodes(data=True):
            if data.get("held_until") in plan.device_of:
                self.holders[name].append(data["held_until"])
        for tensor in self.read.tensors:
            self.made[tensor.source].append(tensor)

    def amount(self, name: str, *attributes: str) -> int:
        return sum(ceil(self.graph.nodes[name].get(attribute) or 0) for attribute in attributes)

    def output(self, name: str) -> int:
        """The output of a layer as far as it is not kept otherwise."""
        data = self.graph.nodes[name]
        kept = (data.get("saved_bytes") or 0) if self.training else 0
        return ceil(data.get("passing_bytes", max(0, (data.get("output_bytes") or 0) - kept)) or 0)

    def is_view(self, name: str) -> bool:
        """Whether it hands on more than it made, so memory of its inputs; what it returns is a byte."""
        handed_on = max([tensor.size for tensor in self.made[name]], default=1)
        return handed_on > (self.graph.nodes[name].get("output_bytes") or 0)

    def needs_inputs_until(self, name: str) -> float:
        end = self.read.ran[name, "forward"][1]
        return max(end, self.output_until(name)) if self.is_view(name) else end

    def output_until(self, name: str) -> float:
        if name not in self.until:
            here = self.read.home(name)
            holders = [name, *self.holders[name]] if self.holders[name] else []
            until = [self.read.ran[other, "forward"][1] for other in holders]
            for number, tensor in enumerate(self.read.tensors):
                if tensor.source == name:
                    until += [self.needs_inputs_until(r) for r in self.read.readers_on(tensor, here)]
                    moves = [self.read.moved[number, d, "forward"] for d in self.read.targets(tensor)]
                    until += [end for _, end in moves]
            self.until[name] = max(until, default=inf)
        return self.until[name]

    def add_layers(self) -> None:
        for name in self.read.place:
            intervals, who = self.intervals[self.read.home(name)], frozenset([name])
            start, end = self.read.ran[name, "forward"]
            kept = self.amount(name, "held_bytes", *["saved_bytes"] * self.training)
            temp = self.amount(name, "temp_bytes")
            local = self.read.readers_on
            readers = [r for t in self.made[name] for r in local(t, self.read.home(name))]
            intervals.append(Interval(-1, inf, self.resident(name)))
            intervals.append(Interval(start, end, temp, who))
            users = who | {reader for reader in readers if not self.training}
            intervals.append(Interval(start, self.output_until(name), self.output(name), users))
            over = self.read.ran[name, "backward"][1] if self.training else inf
            intervals.append(Interval(start, over, kept, who))
            if self.training:
                begin = self.read.ran[name, "backward"][0]
                own = max(0, self.amount(name, "upstream_grad_bytes") - self.received(name))
                intervals.append(Interval(begin, over, temp + own))
                intervals.append(Interval(begin, inf, self.amount(name, "grad_bytes")))

    def resident(self, name: str) -> int:
        """What is always there of a layer; gradients come with its backward."""
        optimizer = str(self.graph.graph.get("optimizer")).lower()
        grads = self.amount(name, "grad_bytes") * self.training
        return self.amount(name, "param_bytes", "buffer_bytes") + grads * STATE.get(optimizer, 0)

    def received(self, name: str) -> int:
        """Gradients of a layer's output that come from other devices."""
        return sum(tensor.size * len(self.read.targets(tensor)) for tensor in self.made[name])

    def add_copies(self) -> None:
        for number, tensor in enumerate(self.read.tensors):
            for there in self.read.targets(tensor):
                self.add_copy(number, tensor, there)

    def add_copy(self, number: int, tensor: Tensor, there: str) -> None:
        start, _ = self.read.moved[number, there, "forward"]
        readers, source = self.read.readers_on(tensor, there), tensor.source
        if not self.training:
            gone = inf if self.read.home(source) == "host" else self.output_until(source)
            until = max(gone, *(self.needs_inputs_until(reader) for reader in readers))
        elif self.read.home(source) == "host":
            until = max(self.read.ran[reader, "backward"][1] for reader in readers)
        else:
            begin, until = self.read.moved[number, there, "backward"]
            over = self.read.ran[source, "backward"][1]
            self.intervals[self.read.home(source)].append(Interval(begin, over, tensor.size))
        self.intervals[there].append(Interval(start, until, tensor.size, frozenset(readers)))

    def peak(self, device: str) -> int:
        """The most that is there at a time, when a layer runs, or when the optimizer steps."""
        changes = []
        for one in self.intervals[device]:
            if one.start < one.end:
                changes += [(one.start, 1, one.size), (one.end, 0, -one.size)]
        live, peak = 0, self.updating(device)
        for _, _, change in sorted(changes):
            live += change
            peak = max(peak, live)
        return max([peak, *(self.while_running(name, device) for name in self.instant(device))])

    def instant(self, device: str) -> list[str]:
        """The layers there that take no time."""
        times = {name: self.read.ran[name, "forward"] for name in self.read.plan.order_on(device)}
        return [name for name, (start, end) in times.items() if start == end]

    def while_running(self, name: str, device: str) -> int:
        """What a layer finds when it runs: what it uses, and all that is there before and after."""
        now = self.read.ran[name, "forward"][0]
        there = [one for one in self.intervals[device] if one.start < now < one.end or name in one.users]
        return sum(one.size for one in there)

    def updating(self, device: str) -> int:
        """What is there when the optimizer steps: all weights, or twice the largest and one as large."""
        layers = self.read.plan.order_on(device)
        each = UPDATE.get(str(self.graph.graph.get("optimizer")).lower(), 0) * self.training
        made = [each * self.amount(name, "grad_bytes") for name in layers]
        grads = sum([self.amount(name, "grad_bytes") * self.training for name in layers])
        largest = max(made, default=0)
        before = min(largest, sum(made) - largest)
        return sum(map(self.resident, layers)) + grads + max(sum(made), 2 * largest + before)


def peaks_from_spans(plan: Plan, timeline: Timeline) -> dict[str, int]:
    """The peak of each device."""
    oracle = Oracle(plan, timeline)
    oracle.add_layers()
    oracle.add_copies()
    return {device: oracle.peak(device) for device in plan.cluster.names}
