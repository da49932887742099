"""Records -> what a person reads."""

from baechi.report.text import render, to_text

__all__ = ["render", "to_text"]
