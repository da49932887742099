"""The report as a small picture: who computes when, what bounds the step, how full each device gets.

One SVG without a script. It follows the reader's theme, so that it can stand in a README.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import count

from baechi.errors import printable
from baechi.records.device import by_kind
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.records.timeline import Span, Timeline
from baechi.report.facts import Facts
from baechi.report.pipeline.facts import PipelineFacts
from baechi.report.pipeline.verdict import pipeline_verdict
from baechi.report.words import lines_of
from baechi.units import format_bytes, format_seconds, format_share

_WIDTH, _MARGIN, _RIGHT = 860, 21, 16
_LETTER = 7
"""Width of a letter of a name."""
_ROW, _APART = 26, 20
_BAR = 300
"""Of a device's memory."""
_FEWEST = 5
"""Marks of time at least."""
_NUMBERED = 11
"""A box of this width says which microbatch it is."""

_COLOURS = (
    ("2f6cc0", "a5c0e6", "74a9f4", "42587a"),
    ("b0560d", "e2bb9c", "ea9657", "75513a"),
    ("2e7d4f", "a3d0b5", "6fcf97", "3b6650"),
    ("7a4bb5", "cbb5e6", "b493f0", "5a4a7d"),
    ("93762a", "dccf9f", "d9bd5a", "6b6038"),
    ("1d7d8c", "9fd2da", "5fc6d6", "38646c"),
    ("a8447f", "e3b3d0", "ec8cc4", "6f4460"),
    ("5b6b7f", "c0c9d4", "a4b2c4", "4a5564"),
)
"""Of a device: forward and backward, in a light theme and in a dark one."""

_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; fill: #1c2430; }
.title { font-size: 15px; font-weight: 600; } .soft { fill: #566070; }
.paper { fill: #ffffff; stroke: #dde1e7; } .idle { fill: #eef0f4; } .axis { stroke: #dde1e7; }
.critical { fill: #d3264a; } .transfer { fill: #8a94a6; }
.number { font-size: 11px; text-anchor: middle; fill: #ffffff; } .number.backward { fill: #1c2430; }
"""

_DARK_STYLE = """
text { fill: #e4e8ef; } .soft { fill: #9aa5b5; }
.paper { fill: #171b22; stroke: #2c333e; } .idle { fill: #222833; } .axis { stroke: #2c333e; }
.critical { fill: #ff6b85; } .transfer { fill: #7d889b; }
.number { fill: #171b22; } .number.backward { fill: #e4e8ef; }
"""


@dataclass(frozen=True)
class _Device:
    name: str
    peak_bytes: int
    limit_bytes: int
    busy_s: float


@dataclass(frozen=True)
class _Shown:
    """What a picture says, of a plan and of a pipeline alike."""

    title: str
    verdict: str
    devices: Sequence[_Device]
    timeline: Timeline
    critical: frozenset[int]
    """The ids of the spans of the critical path, which is that of a plan."""

    @cached_property
    def spans(self) -> list[Span]:
        """What is drawn: not what the optimizer does after the step."""
        return [span for span in self.timeline.spans if span.phase != "other"]

    @cached_property
    def length_s(self) -> float:
        """Until the last one ends; between forward and backward there may be time that is not the step's."""
        return max([self.timeline.makespan_s, *[span.end_s for span in self.spans]])


def to_svg(record: Plan | Pipeline) -> str:
    """The report as a picture: the predicted step by device, the critical path of a plan, memory.

    Args:
        record: a plan, or a pipeline, whose boxes say which microbatch they are.

    Returns:
        An SVG, of some 10 to 60 KiB.
    """
    return _drawn(_of_pipeline(record) if isinstance(record, Pipeline) else _of_plan(record))


def _of_plan(plan: Plan) -> _Shown:
    facts = Facts(plan)
    used = [device for device in facts.devices if device.name in plan.devices_used]
    return _Shown(
        title=_title(plan, facts.mode, facts.step_s),
        verdict=facts.verdict,
        devices=[_Device(d.name, d.peak_bytes, d.limit_bytes, d.busy_s) for d in used],
        timeline=plan.timeline,
        critical=frozenset([id(stretch.span) for stretch in facts.path]),
    )


def _of_pipeline(pipeline: Pipeline) -> _Shown:
    facts = PipelineFacts(pipeline)
    return _Shown(
        title=_title(pipeline.plan, f"{pipeline.microbatches} microbatches", facts.step_s),
        verdict=pipeline_verdict(facts),
        devices=[_Device(d.name, d.peak_bytes, d.limit_bytes, d.busy_s) for d in facts.devices],
        timeline=pipeline.timeline,
        critical=frozenset(),
    )


def _title(plan: Plan, mode: str, step_s: float) -> str:
    model = printable(str(plan.graph.graph.get("model", "model")))
    return f"{model}, {mode}, on {by_kind(plan.cluster.devices)}: {format_seconds(step_s)} a step"


def _drawn(shown: _Shown) -> str:
    left = max(84, _MARGIN + 8 + _LETTER * max([len(device.name) for device in shown.devices], default=0))
    parts = [_text(_MARGIN, 28, shown.title, "title")]
    top = 30
    for line in lines_of(shown.verdict, 126):
        parts.append(_text(_MARGIN, top := top + 18, line))
    parts += _legend(shown, top + 30)
    top += 56
    bottom = top + len(shown.devices) * (_ROW + _APART)
    parts += _axis(shown.length_s, left, top, bottom)
    for number, device in enumerate(shown.devices):
        parts += _row(shown, number, device, left, top + 8 + number * (_ROW + _APART))
    top = bottom + 18
    for number, device in enumerate(shown.devices):
        parts += _memory(shown, number, device, left, top)
        top += 22
    height = top + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(f"{shown.title}. {shown.verdict}")}">\n'
        f"<style>{_style(len(shown.devices))}</style>\n"
        f'<rect class="paper" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _style(devices: int) -> str:
    light, dark = [], []
    for n, (forward, backward, dark_forward, dark_backward) in enumerate(_COLOURS[:devices]):
        light.append(f".d{n} {{ fill: #{forward}; }} .d{n}.backward {{ fill: #{backward}; }}")
        dark.append(f".d{n} {{ fill: #{dark_forward}; }} .d{n}.backward {{ fill: #{dark_backward}; }}")
    in_dark = "\n".join([_DARK_STYLE.strip(), *dark])
    return "\n".join([_STYLE.rstrip(), *light, f"@media (prefers-color-scheme: dark) {{\n{in_dark}\n}}\n"])


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    chosen = f' class="{kind}"' if kind else ""
    return f'<text{chosen} x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _legend(shown: _Shown, y: int) -> list[str]:
    keys = [("d0", "forward"), ("d0 backward", "backward")]
    if shown.critical:
        keys.append(("critical", "critical path"))
    keys.append(("transfer", "transfers received"))
    parts, x = [], _MARGIN
    for kind, words in keys:
        parts.append(f'<path class="{kind}" d="M{x} {y - 9}h16v10h-16z"/>')
        parts.append(_text(x + 22, y, words, "soft"))
        x += 48 + 6 * len(words)
    return parts


def _row(shown: _Shown, number: int, device: _Device, left: int, y: int) -> list[str]:
    """What a device does in the step; below it its part of the critical path, and what it receives."""
    spans, length_s, colour = shown.spans, shown.length_s, f"d{number % len(_COLOURS)}"
    own = [span for span in spans if span.where == device.name and span.kind == "compute"]
    received = [s for s in spans if s.kind == "transfer" and s.where.endswith(f">{device.name}")]
    critical = [span for span in own if id(span) in shown.critical]
    parts = [
        _text(_MARGIN, y + 17, printable(device.name)),
        f'<path class="idle" d="M{left} {y}H{_WIDTH - _RIGHT}v{_ROW}H{left}z"/>',
    ]
    for kind, several in _kinds(own, colour):
        boxes = _boxes(several, length_s, left)
        parts.append(_path(kind, boxes, y, _ROW))
        parts += _numbers(kind, several[0], boxes, y)
    parts.append(_path("critical", _boxes(critical, length_s, left), y + _ROW, 3))
    parts.append(_path("transfer", _boxes(received, length_s, left), y + _ROW + 5, 6))
    return [part for part in parts if part]


def _kinds(own: Iterable[Span], colour: str) -> list[tuple[str, list[Span]]]:
    """Spans by phase and microbatch, each with its class."""
    found: dict[tuple[str, int | None], list[Span]] = {}
    for span in own:
        kind = f"{colour} backward" if span.phase == "backward" else colour
        found.setdefault((kind, span.microbatch), []).append(span)
    return [(kind, spans) for (kind, _), spans in found.items()]


def _boxes(spans: Iterable[Span], length_s: float, left: int) -> list[tuple[float, float]]:
    """Where spans begin and end in the picture; those that touch are one."""
    scale = (_WIDTH - left - _RIGHT) / length_s if length_s else 0.0
    boxes: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda span: span.start_s):
        begin, end = round(left + scale * span.start_s, 1), round(left + scale * span.end_s, 1)
        if boxes and begin - boxes[-1][1] < 0.2:
            boxes[-1] = boxes[-1][0], max(end, boxes[-1][1])
        else:
            boxes.append((begin, end))
    return boxes


def _path(kind: str, boxes: Iterable[tuple[float, float]], y: float, height: float) -> str:
    """Boxes as one path, a hair apart."""
    drawn = [
        f"M{begin:g} {y:g}H{max(end - 0.4, begin + 0.3):g}v{height:g}H{begin:g}z" for begin, end in boxes
    ]
    return f'<path class="{kind}" d="{"".join(drawn)}"/>' if drawn else ""


def _numbers(kind: str, span: Span, boxes: Iterable[tuple[float, float]], y: int) -> list[str]:
    """The microbatch of the boxes that have room for it, counted from 0 as in the report's text."""
    if span.microbatch is None:
        return []
    backward = " backward" if kind.endswith("backward") else ""
    wide = [(begin, end) for begin, end in boxes if end - begin >= _NUMBERED]
    return [
        _text(round((begin + end) / 2, 1), y + 17, str(span.microbatch), f"number{backward}")
        for begin, end in wide
    ]


def _memory(shown: _Shown, number: int, device: _Device, left: int, top: int) -> list[str]:
    full = min(_BAR, max(2.0, _BAR * device.peak_bytes / max(1, device.limit_bytes)))
    busy = f"computes {format_share(device.busy_s, shown.timeline.makespan_s)} of the step"
    held = f"holds {format_bytes(device.peak_bytes)} of {format_bytes(device.limit_bytes)}"
    share = format_share(device.peak_bytes, max(1, device.limit_bytes))
    colour = f"d{number % len(_COLOURS)}"
    return [
        _text(_MARGIN, top + 10, printable(device.name)),
        f'<path class="idle" d="M{left} {top}h{_BAR}v12h-{_BAR}z"/>',
        f'<path class="{colour}" d="M{left} {top}h{full:.1f}v12h-{full:.1f}z"/>',
        _text(left + _BAR + 12, top + 10, f"{held} ({share}), {busy}", "soft"),
    ]


def _axis(length_s: float, left: int, top: int, bottom: int) -> list[str]:
    """Lines at round times."""
    if not length_s:
        return []
    round_s = (digit / 10**power for power in count(-3) for digit in (5, 2, 1))
    apart_s = next(one_s for one_s in round_s if length_s / one_s > _FEWEST)
    parts = []
    for number in range(int(length_s / apart_s) + 1):
        x = round(left + (_WIDTH - left - _RIGHT) * number * apart_s / length_s, 1)
        parts.append(f'<path class="axis" d="M{x:g} {top - 4:g}V{bottom:g}"/>')
        if x < _WIDTH - 60:
            parts.append(_text(x + 4, top, _mark(number * apart_s, length_s), "soft"))
    return parts


def _mark(at_s: float, length_s: float) -> str:
    """A time in the unit that suits the step."""
    unit, of_s = ("s", 1.0) if length_s >= 1 else ("ms", 1e-3) if length_s >= 1e-3 else ("µs", 1e-6)
    return f"{at_s / of_s:.6g} {unit}"
