"""Records -> what a person reads.

In:    a plan and its timeline, or a pipeline.
Out:   text for a terminal, one HTML page, a Chrome trace.
Start: `facts`, then `text`.
"""

from baechi.report.html import pipeline_to_html, to_html
from baechi.report.pipeline import pipeline_to_text, render_pipeline
from baechi.report.text import render, to_text
from baechi.report.trace import to_trace

__all__ = [
    "pipeline_to_html",
    "pipeline_to_text",
    "render",
    "render_pipeline",
    "to_html",
    "to_text",
    "to_trace",
]
