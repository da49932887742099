"""Pipeline -> what a person reads: why it is not faster, who waits, what was tried, a picture of the step.

In:    a `Pipeline`.
Out:   text for a terminal.
Start: `facts`, then `text`.
"""

from baechi.report.pipeline.facts import PipelineFacts
from baechi.report.pipeline.text import pipeline_to_text, render_pipeline

__all__ = ["PipelineFacts", "pipeline_to_text", "render_pipeline"]
