"""A plan as text that a person reads in a minute: what bounds it, how full, how long, what travels."""

from io import StringIO

from rich.console import Console, Group, RenderableType

from baechi.records.device import by_kind
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.report.facts import Facts
from baechi.report.measurement import measured_beside
from baechi.report.reading import Reading
from baechi.report.tables import tables
from baechi.report.words import DrawnTable, Words, facts_grid
from baechi.units import counted, format_bytes, format_seconds


def render(plan: Plan, measured: Timeline | None = None) -> RenderableType:
    """The report on a plan, for a `rich` console."""
    facts = Facts(plan, measured)
    parts: list[RenderableType] = [
        Words(facts.verdict, "bold"),
        "",
        Words(headline(facts)),
        "",
        _reading(facts.reading, facts),
        "",
    ]
    if facts.measured_reading is not None:
        parts += [Words("As measured", "bold"), _reading(facts.measured_reading), ""]
    return Group(*parts, *map(DrawnTable, tables(facts)))


def to_text(plan: Plan, measured: Timeline | None = None, *, width: int = 110) -> str:
    """The report on a plan as plain text."""
    file = StringIO()
    Console(file=file, width=width, color_system=None).print(render(plan, measured))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def headline(facts: Facts) -> str:
    """What was placed, and how long the step takes."""
    plan = facts.plan
    operations = counted(len(plan.device_of) - facts.layers, "functional op")
    return (
        f"{facts.model}, {facts.mode}: {counted(facts.layers, 'layer')} and {operations} "
        f"on {len(plan.devices_used)} of {len(plan.cluster)} devices "
        f"({by_kind(plan.cluster.devices)}), placed by {plan.placer}. "
        f"Predicted step: {format_seconds(facts.step_s)}."
        f"{measured_beside(plan.timeline, facts.measured)}"
    )


def against_one(facts: Facts) -> str:
    """The step beside that of one device, beside its bound, and whether fewer devices would do."""
    used, one = len(facts.plan.devices_used), facts.one_device
    parts = []
    if used > 1 and one is not None:
        alone = f"{one.device} alone ({format_seconds(one.step_s)})"
        if one.short_bytes:
            parts.append(
                f"No device holds all layers: {one.device} is short of {format_bytes(one.short_bytes)}."
            )
        elif facts.step_s:
            parts.append(f"{one.step_s / facts.step_s:.2f} times as fast as {alone}.")
    if facts.bound_s:
        parts.append(f"No plan on these devices takes less than {format_seconds(facts.bound_s)}.")
    if facts.fewest_devices < used:
        fewer = f"{facts.fewest_devices} device{'s' * (facts.fewest_devices > 1)}"
        parts.append(f"As good with {fewer}.")
    return " ".join(parts)


def _reading(reading: Reading, facts: Facts | None = None) -> RenderableType:
    rows = [
        ("why not faster?", reading.why),
        ("fullest", reading.fullest),
        ("what to change", reading.change),
    ]
    if facts is not None and (compared := against_one(facts)):
        rows.append(("against one", compared))
    return facts_grid(rows)
