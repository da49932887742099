"""The page of a plan: what the scripts do not draw, and everything put together."""

from collections.abc import Iterable

from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.report.facts import Facts
from baechi.report.html.data import page_data
from baechi.report.html.parts import Figure, colours, hues_of_devices, memory_explained, page, read
from baechi.report.reading import Bound, Reading
from baechi.report.tables import tables
from baechi.report.text import headline
from baechi.units import format_bytes, format_seconds, format_share

SCRIPTS = ("common.js", "timeline.js", "memory.js", "layout.js", "graph.js", "main.js")

_BOUNDS: dict[Bound, str] = {
    "nothing": "nothing",
    "transfer": "transfers",
    "host": "the host",
    "work": "work",
    "serial": "dependencies",
}
_LEGEND = {
    "forward": "forward",
    "backward": "backward",
    "transfer": "transfer",
    "other": "around the model",
    "idle": "idle",
    "critical": "on the critical path",
}


def to_html(plan: Plan, measured: Timeline | None = None) -> str:
    """The report on a plan as a page: one text, that needs no other file and no network."""
    facts = Facts(plan, measured)
    return page(
        title=f"{facts.model}: {len(plan.devices_used)} devices, {format_seconds(facts.step_s)} a step",
        model=facts.model,
        headline=headline(facts),
        readings=_readings(facts),
        figures=_figures(facts),
        tables=tables(facts),
        legend=_LEGEND,
        style=colours("d", hues_of_devices(len(plan.cluster))),
        memory=memory_explained(facts.mode == "training", ahead=_ahead(plan)),
        layers=read("layers.html"),
        data=page_data(facts),
        scripts=SCRIPTS,
    )


def _ahead(plan: Plan) -> bool:
    """Whether memory is counted when the host issues a kernel: in dry runs, and if its times are known."""
    graph = plan.graph
    return plan.dry is not None or any(graph.amount(name, "host_forward_s") for name in plan.device_of)


def _figures(facts: Facts) -> Iterable[Figure]:
    """The few figures that one looks for first."""
    fullest = max(facts.devices, key=lambda d: d.peak_bytes / d.limit_bytes if d.limit_bytes else 0.0)
    yield "predicted step", format_seconds(facts.step_s), facts.plan.timeline.source
    if facts.measured is not None:
        off = format_share(facts.measured.makespan_s - facts.step_s, facts.step_s)
        yield "measured step", format_seconds(facts.measured.makespan_s), f"{off} off"
    used = f"of {len(facts.devices)}"
    if facts.fewest_devices < len(facts.plan.devices_used):
        used += f"; as good with {facts.fewest_devices}"
    yield from _against_one(facts)
    yield "devices", str(len(facts.plan.devices_used)), used
    if facts.bound_s:
        yield "bound", format_seconds(facts.bound_s), "no plan on these devices is faster"
    yield (
        f"fullest, {fullest.name}",
        format_share(fullest.peak_bytes, fullest.limit_bytes),
        f"{format_bytes(fullest.peak_bytes)} of {format_bytes(fullest.limit_bytes)}",
    )
    yield "bound by", _BOUNDS[facts.reading.bound], facts.reading.where
    yield "cut edges", str(len(facts.cuts)), format_bytes(sum([cut.size_bytes for cut in facts.cuts]))


def _against_one(facts: Facts) -> Iterable[Figure]:
    """How much faster than one device; or that none holds all layers."""
    one = facts.one_device
    if one is None or len(facts.plan.devices_used) < 2 or not facts.step_s:
        return
    if one.short_bytes:
        yield "on one device", "no room", f"{one.device} is short of {format_bytes(one.short_bytes)}"
    else:
        alone = f"{format_seconds(one.step_s)} on {one.device} alone"
        yield "against one device", f"{one.step_s / facts.step_s:.2f} ×", alone


def _readings(facts: Facts) -> Iterable[tuple[str, str]]:
    reading = facts.reading
    yield facts.verdict, f"{reading.why} {reading.fullest} {reading.change}"
    measured = facts.measured_reading
    if measured is not None and (measured.bound, measured.where) == (
        facts.reading.bound,
        facts.reading.where,
    ):
        yield "", f"As measured: bound by the same. {measured.fullest}"
    elif measured is not None:
        yield _reading("As measured: ", measured)


def _reading(which: str, reading: Reading) -> tuple[str, str]:
    return which + reading.why, f"{reading.fullest} {reading.change}"
