"""Two plans or pipelines side by side: what differs, and what comes of it."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from baechi.records.timeline import Timeline
from baechi.report.facts import Facts
from baechi.report.fold import fold
from baechi.report.pipeline.facts import PipelineFacts
from baechi.report.tables import Table
from baechi.units import format_bytes, format_seconds, format_share

_WORDS = 4
_SAME = 1e-9  # as a fraction of a step: times nearer than this count as equal


@dataclass(frozen=True)
class Difference:
    """Two plans or pipelines; of a pipeline step and peaks are those of the whole batch.

    Args:
        one, other: of each.
        names: what they are called.
    """

    one: Facts | PipelineFacts
    other: Facts | PipelineFacts
    names: tuple[str, str] = ("first", "second")

    def __str__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        """Which step is shorter, and by how much."""
        before_s, after_s = self.one.step_s, self.other.step_s
        steps = f"{format_seconds(before_s)} and {format_seconds(after_s)}"
        if abs(after_s - before_s) <= _SAME * max(before_s, after_s):
            return f"{self.names[0]} and {self.names[1]} take the same time ({format_seconds(before_s)})."
        shorter, longer = self.names if before_s < after_s else self.names[::-1]
        saved = format_share(abs(after_s - before_s), max(before_s, after_s))
        return f"{shorter} is faster than {longer} by {saved} ({self.names[0]}, {self.names[1]}: {steps})."

    @cached_property
    def moved(self) -> dict[tuple[str, str], list[str]]:
        """By device before and after, the layers and glue that lie elsewhere; in code order."""
        found: dict[tuple[str, str], list[str]] = {}
        after = self.other.plan.device_of
        for name in self.one.plan.graph.placed():
            before = self.one.plan.device_of[name]
            if name in after and after[name] != before:
                found.setdefault((before, after[name]), []).append(name)
        return found

    @cached_property
    def only(self) -> tuple[list[str], list[str]]:
        """Layers and glue that only the one has, and only the other."""
        one, other = self.one.plan.device_of, self.other.plan.device_of
        return [name for name in one if name not in other], [name for name in other if name not in one]

    @property
    def reordered(self) -> int:
        """How many devices run the same layers in another order."""
        if isinstance(self.one, PipelineFacts) or isinstance(self.other, PipelineFacts):
            return 0  # they run the microbatches' tasks
        one, other = self.one.plan, self.other.plan
        shared = [name for name in one.cluster.names if name in other.cluster.names]
        pairs = [(one.order_on(name), other.order_on(name)) for name in shared]
        return sum(before != after and set(before) == set(after) for before, after in pairs)

    def tables(self) -> list[Table]:
        """All that there is to show."""
        return [self._steps(), self._peaks(), self._moves()]

    def to_json(self) -> str:
        """The difference as JSON text."""
        body: dict[str, Any] = {"baechi": "difference", "names": list(self.names)}
        body["step_s"] = [self.one.step_s, self.other.step_s]
        body["bound"] = [_bound(self.one)[0], _bound(self.other)[0]]
        body["peak_bytes"] = [dict(_timeline(facts).peak_bytes) for facts in (self.one, self.other)]
        body["moved"] = [{"from": a, "to": b, "layers": names} for (a, b), names in self.moved.items()]
        body["only"] = list(self.only)
        body["reordered_devices"] = self.reordered
        return json.dumps(body, indent=1) + "\n"

    def _steps(self) -> Table:
        both = (self.one, self.other)
        rows = [("placer", *[facts.plan.placer for facts in both])]
        rows.append(("predicted step", *[format_seconds(facts.step_s) for facts in both]))
        rows.append(("devices used", *[str(len(facts.plan.devices_used)) for facts in both]))
        if any(isinstance(facts, PipelineFacts) for facts in both):
            rows.append(("microbatches", *[_microbatches(facts) for facts in both]))
        rows.append(("bound by", *[" ".join(filter(None, _bound(facts))) for facts in both]))
        for name in ("compute", "transfer", "host"):
            seconds = [_on_the_path(facts, name) for facts in both]
            rows.append((f"critical path: {name}", *seconds))
        counters = [_timeline(facts).counters for facts in both]
        rows.append(("transfers", *[str(counts.get("transfers", 0)) for counts in counters]))
        rows.append(("bytes that travel", *[format_bytes(c.get("transfer_bytes", 0)) for c in counters]))
        return Table("Step", ("", *self.names), tuple(rows), ("",))

    def _peaks(self) -> Table:
        both = [{device.name: device for device in facts.devices} for facts in (self.one, self.other)]
        rows = []
        for name in dict.fromkeys([*both[0], *both[1]]):
            found = [table.get(name) for table in both]
            peaks = ["-" if d is None else format_bytes(d.peak_bytes) for d in found]
            full = ["-" if d is None else format_share(d.peak_bytes, d.limit_bytes) for d in found]
            rows.append((name, peaks[0], full[0], peaks[1], full[1]))
        columns = ("device", self.names[0], "full", self.names[1], "full ")
        return Table("Peaks", columns, tuple(rows), ("device",))

    def _moves(self) -> Table:
        rows = []
        for (before, after), names in sorted(self.moved.items(), key=lambda item: -len(item[1])):
            folds = ", ".join([str(part) for part in fold(self.one.plan.graph, names, _WORDS)])
            rows.append((before, after, str(len(names)), folds or "functional ops"))
        notes = (
            [f"Devices that run the same layers in another order: {self.reordered}."]
            if self.reordered
            else []
        )
        for name, only in zip(self.names, self.only, strict=True):
            notes += [f"Layers and functional ops in {name} only: {len(only)}."] if only else []
        if not rows:
            notes.insert(0, "All layers that both have lie on the same devices.")
        moved = sum([len(names) for names in self.moved.values()])
        title = f"What lies elsewhere: {moved} layers and functional ops"
        return Table(
            title,
            ("from", "to", "how many", "modules"),
            tuple(rows),
            ("from", "to", "modules"),
            " ".join(notes),
        )


def _timeline(facts: Facts | PipelineFacts) -> Timeline:
    return facts.timeline if isinstance(facts, PipelineFacts) else facts.plan.timeline


def _microbatches(facts: Facts | PipelineFacts) -> str:
    return str(facts.pipeline.microbatches) if isinstance(facts, PipelineFacts) else "-"


def _bound(facts: Facts | PipelineFacts) -> tuple[str, str]:
    """What bounds the step, and where, if that is one place."""
    if isinstance(facts, PipelineFacts):
        return facts.reading[0], ""
    return facts.reading.bound, f"({facts.reading.where})" if facts.reading.where else ""


def _on_the_path(facts: Facts | PipelineFacts, name: str) -> str:
    """How long the critical path of a plan computes, transfers or waits for the host."""
    return "-" if isinstance(facts, PipelineFacts) else format_seconds(getattr(facts.reading, f"{name}_s"))
