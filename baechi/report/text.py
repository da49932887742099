"""A plan as text that a person reads in a minute: what bounds it, how full, how long, what travels."""

from io import StringIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.report.facts import Facts
from baechi.report.measured import measured_beside
from baechi.report.reading import Reading
from baechi.report.tables import Table, tables
from baechi.units import counted, format_bytes, format_seconds


def render(plan: Plan, measured: Timeline | None = None) -> RenderableType:
    """The report on a plan, for a `rich` console.

    Args:
        plan: the plan; it is simulated if it was not yet.
        measured: a step of it that was run, to be shown beside.
    """
    facts = Facts(plan, measured)
    parts: list[RenderableType] = [
        Text(headline(facts), style="bold"),
        "",
        _reading(facts.reading, facts),
        "",
    ]
    if facts.measured_reading is not None:
        parts += [Text("As measured", style="bold"), _reading(facts.measured_reading), ""]
    return Group(*parts, *[render_table(table) for table in tables(facts)])


def to_text(plan: Plan, measured: Timeline | None = None, *, width: int = 110) -> str:
    """The report on a plan as plain text.

    Args:
        plan: the plan.
        measured: a step of it that was run, to be shown beside.
        width: columns.
    """
    file = StringIO()
    Console(file=file, width=width, color_system=None).print(render(plan, measured))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def headline(facts: Facts) -> str:
    """What was placed, and how long the step takes.

    Args:
        facts: of a plan.
    """
    plan = facts.plan
    operations = counted(len(plan.device_of) - facts.layers, "functional op")
    return (
        f"{facts.model}, {facts.mode}: {counted(facts.layers, 'layer')} and {operations} "
        f"on {len(plan.devices_used)} of {len(plan.cluster)} devices, placed by "
        f"{plan.placer}. Predicted step: {format_seconds(facts.step_s)}."
        f"{measured_beside(plan.timeline, facts.measured)}"
    )


def render_table(table: Table) -> RenderableType:
    """A table, for a `rich` console.

    Args:
        table: the table.
    """
    parts: list[RenderableType] = [Text(table.title, style="bold")]
    if table.rows:
        drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for column in table.columns:
            drawn.add_column(column, justify="left" if column in table.texts else "right", overflow="fold")
        for row in table.rows:
            drawn.add_row(*[Text(cell) for cell in row])
        parts.append(drawn)
    if table.note:
        parts += [Text(table.note, style="dim"), ""]
    return Group(*parts)


def against_one(facts: Facts) -> str:
    """The step beside that of one device, beside what dependencies allow, and whether fewer devices would do.

    Args:
        facts: of a plan.
    """
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
    if facts.lower_bound_s:
        parts.append(f"Dependencies alone take {format_seconds(facts.lower_bound_s)}.")
    if facts.fewest_devices < used:
        fewer = f"{facts.fewest_devices} device{'s' * (facts.fewest_devices > 1)}"
        parts.append(f"As good with {fewer}.")
    return " ".join(parts)


def _reading(reading: Reading, facts: Facts | None = None) -> RenderableType:
    lines = RichTable.grid(padding=(0, 2))
    lines.add_row("why not faster?", Text(reading.why))
    lines.add_row("fullest", Text(reading.fullest))
    lines.add_row("what to change", Text(reading.change))
    if facts is not None and (compared := against_one(facts)):
        lines.add_row("against one", Text(compared))
    return lines
