"""Seconds onto a layer graph: measured on this machine, or estimated from datasheets."""

from baechi.measure.estimate import estimate
from baechi.measure.hooks import measure

__all__ = ["estimate", "measure"]
