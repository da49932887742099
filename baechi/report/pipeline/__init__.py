"""Pipeline -> what a person reads: why it is not faster, who waits, what was tried, a picture of the step.

In:    a `Pipeline`.
Out:   text for a terminal.
Start: `facts`, then `text`.
"""

from baechi.report.pipeline.facts import PipelineFacts

__all__ = ["PipelineFacts"]
