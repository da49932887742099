"""A pipeline as text: what bounds it, who waits, what was tried, a picture of the step."""

from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.text import Text

from baechi.errors import printable
from baechi.records.device import by_kind
from baechi.records.pipeline import Pipeline
from baechi.records.timeline import Timeline
from baechi.report.measurement import measured_beside
from baechi.report.pipeline.facts import PipelineFacts, fullest
from baechi.report.pipeline.unsplit import against_unsplit
from baechi.report.pipeline.verdict import pipeline_verdict
from baechi.report.tables import Table, hosts, most
from baechi.report.words import DrawnTable, Words, facts_grid, shortened
from baechi.units import binary_unit, counted, format_bytes, format_seconds, format_share, in_unit

_PICTURE = 66
"""Columns of the picture of the step."""

_NAME = 13
"""Columns of a device's name beside it."""

_BAR = 24

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""Microbatches in the picture, again from the beginning after the last."""


def render_pipeline(pipeline: Pipeline, measured: Timeline | None = None) -> RenderableType:
    """The report on a pipeline, for a `rich` console."""
    facts = PipelineFacts(pipeline, measured)
    _, why, change = facts.reading
    lines = [
        ("why not faster?", why),
        ("what to change", change),
        ("bubble", _shares(facts)),
        ("one device", _against_one(facts)),
    ]
    verdict = Words(pipeline_verdict(facts), "bold")
    parts: list[RenderableType] = [
        verdict,
        "",
        Words(headline(facts)),
        "",
        facts_grid(lines),
        "",
        *map(DrawnTable, tables(facts)),
    ]
    return Group(*parts, Words("The step", "bold"), Text(picture(facts), no_wrap=True))


def pipeline_to_text(pipeline: Pipeline, measured: Timeline | None = None, *, width: int = 110) -> str:
    """The report on a pipeline as plain text."""
    file = StringIO()
    Console(file=file, width=width, color_system=None).print(render_pipeline(pipeline, measured))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def headline(facts: PipelineFacts) -> str:
    """What was ordered, and how long the step takes."""
    pipeline, plan = facts.pipeline, facts.pipeline.plan
    number = pipeline.microbatches
    return (
        f"{plan.graph.graph.get('model', 'model')} in {number} microbatch{'es' * (number != 1)} on "
        f"{len(plan.devices_used)} of {len(plan.cluster)} devices ({by_kind(plan.cluster.devices)}): "
        f"{counted(pipeline.units.whole, 'stage')}, "
        f"{'their weights apart, ' * bool(pipeline.units.weights_of)}"
        f"placed by {plan.placer}, ordered by {pipeline.rule}. "
        f"Predicted step: {format_seconds(facts.step_s)}."
        f"{measured_beside(facts.timeline, facts.measured)}"
    )


def tables(facts: PipelineFacts) -> list[Table]:
    """All tables, in the order in which one reads them."""
    found = [*against_unsplit(facts), devices(facts), *hosts(facts.pipeline.plan, facts.timeline)]
    return [*found, orders(facts), front(facts)] if facts.pipeline.tried else found


def devices(facts: PipelineFacts) -> Table:
    """Where each device's time goes, and how full it is."""
    rows = []
    shown, rest = most(facts.devices, lambda device: device.busy_s)
    for device in shown:
        times = (device.busy_s, device.fill_s, device.waiting_s, device.drain_s)
        full = f"{format_bytes(device.peak_bytes)} ({format_share(device.peak_bytes, device.limit_bytes)})"
        shares = [format_share(seconds, facts.step_s) for seconds in times]
        rows.append((device.name, *shares, str(device.in_flight), full))
    columns = ("device", "computes", "fills", "waits", "drains", "in flight", "peak")
    note = f"And {len(rest)} more that compute less." if rest else ""
    return Table("Devices", columns, tuple(rows), ("device",), note)


def orders(facts: PipelineFacts) -> Table:
    """The fastest order of each rule."""
    rows = [
        (
            tried.rule,
            format_seconds(tried.step_s),
            format_bytes(fullest(tried)),
            "yes" if tried.fits else "no",
            ", ".join(map(str, tried.limits.values())) or "none",
        )
        for tried in facts.best_by_rule
    ]
    columns = ("order", "step", "fullest", "fits", "limits in flight")
    return Table("Tried, the best of each rule", columns, tuple(rows), ("order", "fits", "limits in flight"))


def front(facts: PipelineFacts) -> Table:
    """Memory against time: the orders that nothing beats in both."""
    slowest_s = max([tried.step_s for tried in facts.front])
    unit = binary_unit(max(map(fullest, facts.front)))
    rows = []
    for tried in facts.front:
        bar = "█" * max(1, round(_BAR * tried.step_s / slowest_s)) if slowest_s else ""
        rows.append((in_unit(fullest(tried), unit), format_seconds(tried.step_s), bar, tried.rule))
    columns = (f"fullest, {unit}", "step", "", "order")
    return Table("Memory against time", columns, tuple(rows), ("", "order"))


def picture(facts: PipelineFacts) -> str:
    """The step as a line for each device: a letter a microbatch, small in forward and large in backward."""
    shown, rest = most(facts.devices, lambda device: device.busy_s)
    names = [shortened(printable(device.name), _NAME) for device in shown]
    width = max(map(len, names), default=0)
    lines = []
    for name, device in zip(names, shown, strict=True):
        row = ["·"] * _PICTURE
        for span in facts.timeline.spans if facts.step_s else ():
            if span.where == device.name and span.kind == "compute":
                letter = _LETTERS[(span.microbatch or 0) % len(_LETTERS)]
                letter = letter.upper() if span.phase == "backward" else letter
                first = int(span.start_s / facts.step_s * _PICTURE)
                for column in range(first, min(_PICTURE, round(span.end_s / facts.step_s * _PICTURE))):
                    row[column] = letter
        lines.append(f"{name:{width}} {''.join(row)}")
    lines += [f"and {len(rest)} more that compute less"] if rest else []
    return "\n".join(lines)


def _against_one(facts: PipelineFacts) -> str:
    one = facts.one_device
    if one is None:
        return "layers are pinned to several."
    if one.short_bytes:
        return f"does not hold the step: {one.device} is short of {format_bytes(one.short_bytes)}."
    times = f", {one.step_s / facts.step_s:.2f} times as long" if facts.step_s else ""
    return f"takes {format_seconds(one.step_s)} for the same microbatches, one after the other{times}."


def _shares(facts: PipelineFacts) -> str:
    return (
        f"devices compute {format_share(1 - facts.bubble, 1)} of the time; the host works for "
        f"{format_share(facts.host_share, 1)} of the step; at most {format_bytes(facts.bytes_in_flight)} "
        "are on their way at once."
    )
