"""What there is to say about a pipeline: where each device's time goes, and what bounds the step.

fill      before a device's first task       drain     after its last
waiting   between its tasks: for what it reads, or for the host
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from baechi.records.cluster import HOST
from baechi.records.pipeline import OrderTried, Pipeline
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.report import host_share
from baechi.report.fewer_devices import OneDevice
from baechi.report.pipeline.one_device import on_one_device
from baechi.units import format_bytes, format_seconds, format_share

Bound = Literal["nothing", "host", "link", "work", "balance", "memory", "bubble", "waiting"]

_MOST = 0.9
"""What takes this part of the step bounds it."""

_UNEVEN = 1.15
"""A device with this many times the mean work is too full of it."""

_FASTER, _SLOW = 0.98, 0.5


@dataclass(frozen=True)
class DeviceTime:
    """A device's step in seconds; the four add up to it.

    Args:
        name: the device.
        busy_s: it computes.
        fill_s: before its first task.
        drain_s: after its last.
        waiting_s: between its tasks.
        in_flight: the most microbatches in flight.
        peak_bytes: the most that it holds.
        limit_bytes: what it may hold.
    """

    name: str
    busy_s: float
    fill_s: float
    drain_s: float
    waiting_s: float
    in_flight: int
    peak_bytes: int
    limit_bytes: int


class PipelineFacts:
    """All that the report says of a pipeline.

    Args:
        pipeline: any; it is simulated if it was not yet.
        measured: a step that was run, if there was one.
    """

    def __init__(self, pipeline: Pipeline, measured: Timeline | None = None) -> None:
        self.measured = measured
        self.pipeline, self.timeline = pipeline, pipeline.timeline
        self.step_s = self.timeline.makespan_s

    @property
    def plan(self) -> Plan:
        """Where layers run; its graph has the costs of one microbatch."""
        return self.pipeline.plan

    @cached_property
    def devices(self) -> list[DeviceTime]:
        """Each device that has a stage."""
        found = []
        for device in self.pipeline.plan.cluster.devices:
            own = [s for s in self.timeline.spans if s.where == device.name and s.kind == "compute"]
            if not own:
                continue
            fill_s, last_s = min([s.start_s for s in own]), max([s.end_s for s in own])
            busy_s = self.timeline.busy_s(device.name)
            found.append(
                DeviceTime(
                    device.name,
                    busy_s,
                    fill_s,
                    max(0.0, self.step_s - last_s),
                    max(0.0, last_s - fill_s - busy_s),
                    self.pipeline.in_flight[device.name],
                    self.timeline.peak_bytes.get(device.name, 0),
                    device.memory_bytes,
                )
            )
        return found

    @cached_property
    def one_device(self) -> OneDevice | None:
        """All microbatches, one after the other, on the best device for that."""
        return on_one_device(self.pipeline)

    @property
    def bubble(self) -> float:
        """The part of the used devices' time in which they do not compute."""
        whole_s = self.step_s * len(self.devices)
        return 1 - sum([device.busy_s for device in self.devices]) / whole_s if whole_s else 0.0

    @property
    def host_share(self) -> float:
        """The part of the step in which the host works."""
        return min(1.0, host_share.worked_s(self.timeline) / self.step_s) if self.step_s else 0.0

    @property
    def bytes_in_flight(self) -> int:
        """The most bytes that are on their way at one time."""
        changes: list[tuple[float, int]] = []
        for span in self.timeline.spans:
            if span.kind == "transfer":
                changes += [(span.start_s, span.size_bytes), (span.end_s, -span.size_bytes)]
        most = now = 0
        for _, change in sorted(changes):
            now += change
            most = max(most, now)
        return most

    @cached_property
    def front(self) -> list[OrderTried]:
        """The orders that no other beats in both time and bytes of the fullest device, fastest first."""
        kept: list[OrderTried] = []
        for tried in sorted(self.pipeline.tried, key=lambda tried: (tried.step_s, fullest(tried))):
            if not kept or fullest(tried) < fullest(kept[-1]):
                kept.append(tried)
        return kept

    @property
    def best_by_rule(self) -> list[OrderTried]:
        """Of each rule, the fastest order that fits; else the fastest."""
        found: dict[str, OrderTried] = {}
        for tried in sorted(self.pipeline.tried, key=lambda tried: (not tried.fits, tried.step_s)):
            found.setdefault(tried.rule, tried)
        return list(found.values())

    @cached_property
    def reading(self) -> tuple[Bound, str, str]:
        """What bounds the step; why it is not faster; what to change."""
        if not self.step_s or not self.devices:
            return "nothing", "Nothing takes time in this step.", "There is nothing to make faster."
        busiest = max(self.devices, key=lambda device: device.busy_s)
        mean_s = sum([device.busy_s for device in self.devices]) / len(self.devices)
        share = format_share(busiest.busy_s, self.step_s)
        if self.host_share > _MOST:
            return (
                "host",
                f"The host works for {format_share(self.host_share, 1)} of the step: it issues all tasks.",
                "Faster with fewer microbatches, or with a larger batch.",
            )
        if (link := self._fullest_link()) is not None:
            return (
                "link",
                f"The link {link[0]} is busy for {format_share(link[1], self.step_s)} of the step.",
                "Faster with fewer virtual stages, with other cuts, or with a faster link.",
            )
        if (
            len(self.devices) > 1
            and busiest.busy_s > _UNEVEN * mean_s
            and busiest.busy_s > _MOST / 2 * self.step_s
        ):
            return (
                "balance",
                f"{busiest.name} computes {share} of the step, {busiest.busy_s / mean_s:.1f} times as long "
                "as a device does on average.",
                "Faster if its largest layers were split, or shared no weights: "
                f"it has {self._largest(busiest)}.",
            )
        if busiest.busy_s > _MOST * self.step_s:
            return (
                "work",
                f"All devices compute nearly all the time ({busiest.name} {share}).",
                "Faster with more devices, or with faster ones.",
            )
        apart, whole = self._tried_apart, [one for one in self.pipeline.tried if not one.is_apart]
        better = [tried for tried in whole if not tried.fits]
        fastest = min(better, key=lambda tried: tried.step_s, default=None)
        if fastest is not None and fastest.step_s < _FASTER * self.step_s:
            return (
                "memory",
                f"Memory allows no more microbatches in flight: {fastest.rule} would take "
                f"{format_seconds(fastest.step_s)}, with {format_bytes(fullest(fastest))} on one device.",
                "Faster with more memory, or with smaller microbatches.",
            )
        idle = format_share(self.step_s - busiest.busy_s, self.step_s)
        computed_s, travelled_s = self._one_microbatch_s()
        if travelled_s < _SLOW * computed_s:
            return (
                "bubble",
                f"The pipeline fills and drains: {busiest.name}, which works most, is idle for {idle} of the "
                "step.",
                "Faster with more microbatches, or with virtual stages."
                if apart is None
                else f"Faster with weights_apart=True ({format_seconds(apart.step_s)}, fullest "
                f"{format_bytes(fullest(apart))}), or with more microbatches.",
            )
        return (
            "waiting",
            f"{busiest.name}, which works most, is idle for {idle} of the step: a microbatch travels for "
            f"{format_seconds(travelled_s)} and is computed for {format_seconds(computed_s)}.",
            "Faster with more microbatches, with faster links, or with cuts where less travels.",
        )

    @property
    def _tried_apart(self) -> OrderTried | None:
        """The fastest that fits with the backward of weights apart, where the chosen order has not."""
        found = [tried for tried in self.pipeline.tried if tried.is_apart and tried.fits]
        if self.pipeline.units.weights_of:
            return None
        return min(found, key=lambda tried: tried.step_s, default=None)

    def _one_microbatch_s(self) -> tuple[float, float]:
        """For how long one microbatch is computed, and travels between devices."""
        own = [span for span in self.timeline.spans if span.microbatch in (0, None)]
        between = [s for s in own if s.kind == "transfer" and not s.where.startswith(f"{HOST}>")]
        computed = [span for span in own if span.kind == "compute"]
        return (
            sum([span.end_s - span.start_s for span in computed]),
            sum([span.end_s - span.start_s for span in between]),
        )

    def _fullest_link(self) -> tuple[str, float] | None:
        """The link, or with serial reception all links to a device, that is busy nearly all the time."""
        serial = self.pipeline.plan.cluster.reception == "serial"
        busy: dict[str, float] = {}
        for span in self.timeline.spans:
            if span.kind == "transfer":
                channel = f"to {span.where.split('>')[1]}" if serial else span.where
                busy[channel] = busy.get(channel, 0.0) + span.end_s - span.start_s
        most = max(sorted(busy), key=busy.__getitem__, default=None)
        return None if most is None or busy[most] < _MOST * self.step_s else (most, busy[most])

    def _largest(self, device: DeviceTime) -> str:
        """The colocated layers of a device that take longest."""
        plan = self.pipeline.plan
        where = plan.cluster.device(device.name)

        def taken_s(names: list[str]) -> float:
            phases = ("forward_s", "backward_s")
            return sum(
                [plan.graph.seconds(n, phase, where.kind, where.speed) for n in names for phase in phases]
            )

        groups = [names for names in plan.graph.groups().values() if plan.device_of[names[0]] == device.name]
        largest = max(groups, key=taken_s)
        more = f" and {len(largest) - 1} with it" if len(largest) > 1 else ""
        share = format_share(self.pipeline.microbatches * taken_s(largest), device.busy_s)
        return f"{largest[0]}{more}, {share} of its work"


def fullest(tried: OrderTried) -> int:
    """The bytes of the fullest device."""
    return max(tried.peak_bytes.values(), default=0)
