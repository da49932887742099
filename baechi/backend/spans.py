"""From what ran on devices to a timeline: one rule for emulated and real ones."""

from collections.abc import Iterable, Mapping

from baechi.records.timeline import Span, Timeline


def timeline_of(
    ran: Iterable[Span],
    peak_bytes: Mapping[str, int],
    counters: Mapping[str, int],
    *,
    merge: bool = True,
    before_s: Mapping[str, float] | None = None,
) -> Timeline:
    """The timeline of a step."""
    before_s = {device: end_s for device, end_s in (before_s or {}).items() if end_s > 0}
    spans = [Span("compute", "", device, 0.0, end_s, "other") for device, end_s in before_s.items()]
    last: dict[str, int] = {}
    for span in sorted(ran, key=lambda span: span.start_s):
        place = last.get(span.where)
        before = spans[place] if place is not None else None
        if merge and before is not None and place is not None and _goes_on(before, span):
            end_s = max(before.end_s, span.end_s)
            spans[place] = Span(span.kind, span.layer, span.where, before.start_s, end_s, span.phase)
        else:
            last[span.where] = len(spans)
            spans.append(span)
    return Timeline(
        spans=tuple(spans),
        makespan_s=_makespan_s(spans, before_s),
        peak_bytes=dict(peak_bytes),
        counters=dict(counters),
        source="measured",
    )


def _goes_on(before: Span, span: Span) -> bool:
    same = before.layer == span.layer and before.phase == span.phase
    return same and before.kind == span.kind == "compute"


def _makespan_s(spans: list[Span], before_s: Mapping[str, float]) -> float:
    forward, backward = _window_s(spans, "forward", before_s), _window_s(spans, "backward", {})
    # with outputs that stay, the backward of one may run while another is computed
    shared_s = min(forward[1], backward[1]) - max(forward[0], backward[0])
    return forward[1] - forward[0] + backward[1] - backward[0] - max(0.0, shared_s)


def _window_s(spans: list[Span], phase: str, before_s: Mapping[str, float]) -> tuple[float, float]:
    own = [span for span in spans if span.phase == phase]
    if not own:
        return 0.0, 0.0
    start_s = max([min(span.start_s for span in own), *(before_s.get(span.where, 0.0) for span in own)])
    return start_s, max(span.end_s for span in own)
