"""The page of a pipeline: the step by device, in colours of microbatches, and by microbatch."""

from collections.abc import Iterable

from baechi.records.pipeline import Pipeline
from baechi.records.timeline import Timeline
from baechi.report.fewer_devices import short_bytes
from baechi.report.html.parts import Figure, colours, hues_of_devices, memory_explained, page
from baechi.report.html.pipeline_data import pipeline_data
from baechi.report.pipeline.facts import PipelineFacts
from baechi.report.pipeline.text import headline, tables
from baechi.report.pipeline.verdict import pipeline_verdict
from baechi.units import counted, format_bytes, format_seconds, format_share

SCRIPTS = ("common.js", "timeline.js", "memory.js", "main.js")

_FIRST_HUE, _ALL_HUES = 255, 330
"""Microbatches go round the circle of hues, but for the stretch that would bring the last to the first."""

_LEGEND = {
    "forward": "forward, in its microbatch's colour",
    "backward": "backward, paler",
    "transfer": "transfer",
    "idle": "idle",
}


def pipeline_to_html(pipeline: Pipeline, measured: Timeline | None = None) -> str:
    """The report on a pipeline as a page: one text, that needs no other file and no network."""
    facts = PipelineFacts(pipeline, measured)
    _, why, change = facts.reading
    number = pipeline.microbatches
    model = str(pipeline.plan.graph.graph.get("model", "model"))
    hues = [(_FIRST_HUE + round(_ALL_HUES * n / max(1, number))) % 360 for n in range(number)]
    return page(
        title=f"{model}: {number} microbatches, {format_seconds(facts.step_s)} a step",
        model=model,
        headline=headline(facts),
        readings=[(pipeline_verdict(facts), f"{why} {change}")],
        figures=_figures(facts),
        tables=tables(facts),
        legend=_LEGEND,
        style=colours("d", hues_of_devices(len(pipeline.plan.cluster))) + colours("m", hues),
        memory=memory_explained(pipeline.plan.graph.training, ahead=True),
        layers="",
        data=pipeline_data(pipeline),
        scripts=SCRIPTS,
    )


def _figures(facts: PipelineFacts) -> Iterable[Figure]:
    """The few figures that one looks for first."""
    yield "predicted step", format_seconds(facts.step_s), facts.timeline.source
    one = facts.one_device
    if one is not None and one.short_bytes:
        yield "on one device", "no room", f"{one.device} is short of {format_bytes(one.short_bytes)}"
    elif one is not None and facts.step_s:
        alone = f"{format_seconds(one.step_s)} on {one.device} alone"
        yield "against one device", f"{one.step_s / facts.step_s:.2f} ×", alone
    unsplit = facts.pipeline.unsplit
    if unsplit is not None and facts.step_s:
        unsplit_s = unsplit.timeline.makespan_s
        fits = ", does not fit" if short_bytes(unsplit) else ""
        note = f"{format_seconds(unsplit_s)} by {unsplit.placer}{fits}"
        yield "against no microbatches", f"{unsplit_s / facts.step_s:.2f} ×", note
    stages = counted(facts.pipeline.units.whole, "stage")
    yield "microbatches", str(facts.pipeline.microbatches), f"in {stages}"
    yield "bubble", format_share(facts.bubble, 1), "of the used devices' time"
    yield "host", format_share(facts.host_share, 1), "of the step it works"
    fullest = max(facts.devices, key=lambda d: d.peak_bytes / max(1, d.limit_bytes), default=None)
    if fullest is not None:
        held = f"{format_bytes(fullest.peak_bytes)} of {format_bytes(fullest.limit_bytes)}"
        share = format_share(fullest.peak_bytes, max(1, fullest.limit_bytes))
        yield f"fullest, {fullest.name}", share, held
