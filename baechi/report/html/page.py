"""The page: what the scripts do not draw, and everything put together."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template

from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.report.facts import Facts
from baechi.report.html.data import page_data
from baechi.report.reading import Bound, Reading
from baechi.report.tables import Table, tables
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
_HUES = (255, 55, 150, 335, 205, 95, 300, 25)
_GOLDEN_ANGLE = 137.5


def to_html(plan: Plan, measured: Timeline | None = None) -> str:
    """The report on a plan as a page: one text, that needs no other file and no network.

    Args:
        plan: the plan; it is simulated if it was not yet.
        measured: a step of it that was run, to be shown beside.

    Returns:
        HTML.
    """
    facts = Facts(plan, measured)
    title = f"{facts.model}: {len(plan.devices_used)} devices, {format_seconds(facts.step_s)} a step"
    parts = Parts(
        "plan", facts.model, title, headline(facts), _figures(facts), list(_readings(facts)), tables(facts)
    )
    return put_together(parts, page_data(facts), len(plan.cluster))


@dataclass(frozen=True)
class Parts:
    """What stands on a page beside its pictures.

    Args:
        kind: `"plan"` or `"pipeline"`.
        model: the model's name.
        title: the page's.
        headline: one sentence.
        figures: name, value and note of each.
        readings: paragraphs, as HTML.
        tables: below the pictures.
    """

    kind: str
    model: str
    title: str
    headline: str
    figures: Sequence[tuple[str, str, str]]
    readings: Sequence[str]
    tables: Sequence[Table]


def put_together(parts: Parts, data: object, devices: int) -> str:
    """A page.

    Args:
        parts: its text.
        data: of its pictures, for the scripts.
        devices: how many devices have a colour.

    Returns:
        HTML.
    """
    return Template(_file("page.html")).substitute(
        kind=parts.kind,
        title=escape(parts.title),
        style=_file("style.css") + _colours(devices),
        model=escape(parts.model),
        headline=escape(parts.headline),
        figures="".join(map(_figure, parts.figures)),
        readings="".join(parts.readings),
        tables="".join(_table(table) for table in parts.tables),
        data=_for_script(data),
        script="\n".join(_file(name) for name in SCRIPTS),
    )


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _for_script(data: object) -> str:
    """JSON that can stand in a script element: nothing in it ends the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _colours(devices: int) -> str:
    """A hue for each device; how light and strong it is depends on the theme."""
    hues = [_HUES[n] if n < len(_HUES) else round(n * _GOLDEN_ANGLE) % 360 for n in range(devices)]
    lines = [f"  --hue{number}: {hue};" for number, hue in enumerate(hues)]
    rules = [
        f".d{n} {{ --device: oklch(var(--light) var(--chroma) var(--hue{n})); }}" for n in range(devices)
    ]
    return "\n".join(["", ":root {", *lines, "}", *rules, ""])


def _figure(figure: tuple[str, str, str]) -> str:
    name, value, note = map(escape, figure)
    return f"<div><dt>{name}</dt><dd>{value} <small>{note}</small></dd></div>"


def _figures(facts: Facts) -> list[tuple[str, str, str]]:
    """The few figures that one looks for first."""
    fullest = max(facts.devices, key=lambda d: d.peak_bytes / d.limit_bytes if d.limit_bytes else 0.0)
    shown: list[tuple[str, str, str]] = [
        ("predicted step", format_seconds(facts.step_s), facts.plan.timeline.source)
    ]
    if facts.measured is not None:
        off = format_share(facts.measured.makespan_s - facts.step_s, facts.step_s)
        shown.append(("measured step", format_seconds(facts.measured.makespan_s), f"{off} off"))
    used = f"of {len(facts.devices)}"
    if facts.fewest_devices < len(facts.plan.devices_used):
        used += f"; as good with {facts.fewest_devices}"
    shown += [*_against_one(facts), ("devices", str(len(facts.plan.devices_used)), used)]
    if facts.lower_bound_s:
        shown.append(("lower bound", format_seconds(facts.lower_bound_s), "by dependencies"))
    shown += [
        (
            f"fullest, {fullest.name}",
            format_share(fullest.peak_bytes, fullest.limit_bytes),
            f"{format_bytes(fullest.peak_bytes)} of {format_bytes(fullest.limit_bytes)}",
        ),
        ("bound by", _BOUNDS[facts.reading.bound], facts.reading.where),
        ("cut edges", str(len(facts.cuts)), format_bytes(sum([cut.size_bytes for cut in facts.cuts]))),
    ]
    return shown


def _against_one(facts: Facts) -> Iterable[tuple[str, str, str]]:
    """How much faster than one device; or that none holds all layers."""
    one = facts.one_device
    if one is None or len(facts.plan.devices_used) < 2 or not facts.step_s:
        return
    if one.short_bytes:
        yield "on one device", "no room", f"{one.device} is short of {format_bytes(one.short_bytes)}"
    else:
        alone = f"{format_seconds(one.step_s)} on {one.device} alone"
        yield "against one device", f"{one.step_s / facts.step_s:.2f} ×", alone


def _readings(facts: Facts) -> Iterable[str]:
    yield _reading_of("", facts.reading)
    measured = facts.measured_reading
    if measured is not None and (measured.bound, measured.where) == (
        facts.reading.bound,
        facts.reading.where,
    ):
        yield f'<p class="reading">As measured: bound by the same. {escape(measured.fullest)}</p>'
    elif measured is not None:
        yield _reading_of("As measured: ", measured)


def _reading_of(which: str, reading: Reading) -> str:
    return paragraph(which + reading.why, f"{reading.fullest} {reading.change}")


def paragraph(why: str, rest: str) -> str:
    """A reading, as HTML.

    Args:
        why: why the step is not faster.
        rest: what else is said.
    """
    return f'<p class="reading"><b>{escape(why)}</b> {escape(rest)}</p>'


def _table(table: Table) -> str:
    def row(cells: Iterable[str], tag: str) -> str:
        kinds = ["" if column in table.texts else ' class="figure"' for column in table.columns]
        parts = [f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)]
        return f"<tr>{''.join(parts)}</tr>"

    drawn = ""
    if table.rows:
        head, body = row(table.columns, "th"), "".join(row(cells, "td") for cells in table.rows)
        drawn = f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'
    note = f"<p class='note'>{escape(table.note)}</p>" if table.note else ""
    return f"<section><h2>{escape(table.title)}</h2>{drawn}{note}</section>"
