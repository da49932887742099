"""Records -> what a person reads."""

from baechi.report.html import to_html
from baechi.report.text import render, to_text
from baechi.report.trace import to_trace

__all__ = ["render", "to_html", "to_text", "to_trace"]
