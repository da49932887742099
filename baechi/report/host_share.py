"""For how long the host works in a step, where that was counted, and what would lift it."""

from collections.abc import Iterable

from baechi.records.timeline import Timeline
from baechi.units import format_seconds, format_share

_BOUND = 0.8
"""The host bounds a step for this part of which it works, if it works longer than each device."""

LIFTED = "a larger batch, `compile=`, or fewer and larger kernels"


def worked_s(timeline: Timeline) -> float:
    """For how long the host works in a step, launches included; 0 where that was not counted.

    Of backward's threads, which work at once, the busiest counts.
    """
    return timeline.counters.get("host_us", 0) / 1e6


def bounds(timeline: Timeline, devices: Iterable[str]) -> bool:
    """Whether the host bounds a step."""
    busiest_s = max([timeline.busy_s(name) for name in devices], default=0.0)
    return worked_s(timeline) > max(busiest_s, _BOUND * timeline.makespan_s) > 0


def share(timeline: Timeline, devices: Iterable[str]) -> str:
    """How long the host works, and how long devices do not: `31.00 of 34.00 ms; devices idle 62 %`."""
    step_s, names = timeline.makespan_s, list(devices)
    busy_s = sum([timeline.busy_s(name) for name in names])
    idle = format_share(max(0.0, len(names) * step_s - busy_s), max(1, len(names)) * step_s)
    return (
        f"{format_seconds(min(step_s, worked_s(timeline)))} of {format_seconds(step_s)}; devices idle {idle}"
    )
