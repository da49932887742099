"""Seconds onto a layer graph: measured on this machine, or estimated from datasheets."""

from baechi.measure.copies import links
from baechi.measure.estimate import estimate, estimate_issue
from baechi.measure.hooks import measure
from baechi.measure.layers import measure_layers

__all__ = ["estimate", "estimate_issue", "links", "measure", "measure_layers"]
