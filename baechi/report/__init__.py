"""Records -> what a person reads.

In:    a plan or a pipeline, and its timeline.
Out:   text for a terminal, one HTML page, a small picture, a Chrome trace.
Start: `facts` and `pipeline/facts`, then `text` and `forms`.
"""

from baechi.report.forms import render, to_html, to_text
from baechi.report.picture import to_svg
from baechi.report.trace import to_trace

__all__ = ["render", "to_html", "to_svg", "to_text", "to_trace"]
