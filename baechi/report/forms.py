"""The report on what a model runs, a plan or a pipeline, in each of its forms."""

from rich.console import RenderableType

from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.report.html.page import to_html as plan_to_html
from baechi.report.html.pipeline_page import pipeline_to_html
from baechi.report.pipeline.text import pipeline_to_text, render_pipeline
from baechi.report.text import render as render_plan
from baechi.report.text import to_text as plan_to_text


def render(record: Plan | Pipeline, measured: Timeline | None = None) -> RenderableType:
    """The report for a `rich` console."""
    return (
        render_pipeline(record, measured) if isinstance(record, Pipeline) else render_plan(record, measured)
    )


def to_text(record: Plan | Pipeline, measured: Timeline | None = None, *, width: int = 110) -> str:
    """The report as plain text."""
    if isinstance(record, Pipeline):
        return pipeline_to_text(record, measured, width=width)
    return plan_to_text(record, measured, width=width)


def to_html(record: Plan | Pipeline, measured: Timeline | None = None) -> str:
    """The report as a page: one text, that needs no other file and no network."""
    return (
        pipeline_to_html(record, measured) if isinstance(record, Pipeline) else plan_to_html(record, measured)
    )
