"""Make the README's picture of a report: `python docs/picture.py` writes `docs/report.svg`.

It shows a plan that is made here, of a shipped graph on datasheets: what each device computes when, the
critical path, how full devices get. All figures are the report's.
"""

from collections.abc import Iterable
from html import escape
from itertools import count
from pathlib import Path

import baechi
from baechi.records import Cluster, LayerGraph, files
from baechi.records.device import by_kind
from baechi.records.timeline import Span
from baechi.report.facts import Facts
from baechi.report.words import lines_of
from baechi.units import format_bytes, format_seconds, format_share

FILE = Path(__file__).with_name("report.svg")
WIDTH, LEFT, RIGHT = 860, 84, 16
ROW, GAP = 26, 12
BAR = 300  # of a device's memory
FEWEST = 5  # marks of time at least

STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; fill: #1c2430; }
.title { font-size: 15px; font-weight: 600; } .soft { fill: #566070; }
.paper { fill: #ffffff; stroke: #dde1e7; }
.idle { fill: #eef0f4; } .axis { stroke: #dde1e7; } .critical { fill: #d3264a; } .transfer { fill: #8a94a6; }
.d0 { fill: #2f6cc0; } .d1 { fill: #b0560d; } .d0.backward { fill: #a5c0e6; } .d1.backward { fill: #e2bb9c; }
@media (prefers-color-scheme: dark) {
text { fill: #e4e8ef; } .soft { fill: #9aa5b5; } .paper { fill: #171b22; stroke: #2c333e; }
.idle { fill: #222833; } .axis { stroke: #2c333e; } .critical { fill: #ff6b85; } .transfer { fill: #7d889b; }
.d0 { fill: #74a9f4; } .d1 { fill: #ea9657; } .d0.backward { fill: #42587a; } .d1.backward { fill: #75513a; }
}
"""


def facts() -> Facts:
    """Of Inception-v3 on two A100s, placed by `auto` without a search."""
    cluster = Cluster.parse("2xA100-80GB")
    return Facts(baechi.place(LayerGraph.load("inception-v3"), cluster, optimizer="adam", effort=0))


def picture(shown: Facts) -> str:
    """The report on a plan of two devices as an SVG.

    Args:
        shown: of the plan.
    """
    timeline, devices = shown.plan.timeline, shown.devices
    what = f"{shown.model}, {shown.mode}, on {by_kind(devices)}: {format_seconds(shown.step_s)} a step"
    parts = [_text(LEFT // 4, 28, what, "title")]
    top = 30
    for line in lines_of(shown.verdict, 126):
        parts.append(_text(LEFT // 4, top := top + 18, line))
    top = _legend(parts, top + 30) + 26
    parts += _axis(shown.step_s, top, top + len(devices) * (ROW + GAP + 8))
    critical = {id(stretch.span) for stretch in shown.path}
    for number, device in enumerate(devices):
        row = top + 8 + number * (ROW + GAP + 8)
        own = [span for span in timeline.spans if span.where == device.name]
        received = [s for s in timeline.spans if s.kind == "transfer" and s.where.endswith(f">{device.name}")]
        parts.append(_text(LEFT // 4, row + 17, device.name))
        parts.append(f'<path class="idle" d="M{LEFT} {row}H{WIDTH - RIGHT}v{ROW}H{LEFT}z"/>')
        drawn = (
            (f"d{number}", [s for s in own if s.phase == "forward"], row, ROW),
            (f"d{number} backward", [s for s in own if s.phase == "backward"], row, ROW),
            ("critical", [s for s in timeline.spans if id(s) in critical and s in own], row + ROW, 3),
            ("transfer", received, row + ROW + 5, 6),
        )
        parts += [_path(kind, spans, shown.step_s, y, height) for kind, spans, y, height in drawn]
    top += len(devices) * (ROW + GAP + 8) + 18
    for number, device in enumerate(devices):
        full = max(2.0, BAR * device.peak_bytes / device.limit_bytes)
        busy = f"computes {format_share(device.busy_s, shown.step_s)} of the step"
        held = f"holds {format_bytes(device.peak_bytes)} of {format_bytes(device.limit_bytes)}"
        share = format_share(device.peak_bytes, device.limit_bytes)
        parts.append(_text(LEFT // 4, top + 10, device.name))
        parts.append(f'<path class="idle" d="M{LEFT} {top}h{BAR}v12h-{BAR}z"/>')
        parts.append(f'<path class="d{number}" d="M{LEFT} {top}h{full:.1f}v12h-{full:.1f}z"/>')
        parts.append(_text(LEFT + BAR + 12, top + 10, f"{held} ({share}), {busy}", "soft"))
        top += 22
    height = top + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(f"{what}. {shown.verdict}")}">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    chosen = f' class="{kind}"' if kind else ""
    return f'<text{chosen} x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _legend(parts: list[str], y: int) -> int:
    """Draw the keys; return where they end."""
    x = LEFT // 4
    keys = (
        ("d0", "forward"),
        ("d0 backward", "backward"),
        ("critical", "critical path"),
        ("transfer", "transfers received"),
    )
    for kind, words in keys:
        parts.append(f'<path class="{kind}" d="M{x} {y - 9}h16v10h-16z"/>')
        parts.append(_text(x + 22, y, words, "soft"))
        x += 48 + 6 * len(words)
    return y


def _x(seconds: float, step_s: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * seconds / step_s


def _path(kind: str, spans: Iterable[Span], step_s: float, y: float, height: float) -> str:
    """Spans as one path, a box each; boxes that touch are one."""
    boxes: list[list[float]] = []
    for span in sorted(spans, key=lambda span: span.start_s):
        begin, end = round(_x(span.start_s, step_s), 1), round(_x(span.end_s, step_s), 1)
        if boxes and begin - boxes[-1][1] < 0.2:
            boxes[-1][1] = max(end, boxes[-1][1])
        else:
            boxes.append([begin, end])
    drawn = [f"M{begin:g} {y:g}H{max(end, begin + 0.3):g}v{height:g}H{begin:g}z" for begin, end in boxes]
    return f'<path class="{kind}" d="{"".join(drawn)}"/>'


def _axis(step_s: float, top: float, bottom: float) -> list[str]:
    """Lines at round times."""
    round_s = (digit / 10**power for power in count() for digit in (5, 2, 1))
    apart_s = next(one_s for one_s in round_s if step_s / one_s > FEWEST)
    parts = []
    for number in range(int(step_s / apart_s) + 1):
        x = round(_x(number * apart_s, step_s), 1)
        parts.append(f'<path class="axis" d="M{x:g} {top - 4:g}V{bottom:g}"/>')
        if x < WIDTH - 60:
            parts.append(_text(x + 4, top, f"{number * apart_s * 1e3:g} ms", "soft"))
    return parts


if __name__ == "__main__":
    files.write(FILE, picture(facts()))
