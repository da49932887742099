"""Seconds onto a layer graph: measured on this machine, or estimated from datasheets.

In:    a layer graph, and the model if it is measured.
Out:   the same graph with seconds; links and launches of a cluster; what the runtime takes of the host.
Start: `estimate`, then `hooks`.
"""

from baechi.measure.copies import links
from baechi.measure.estimate import estimate, estimate_additions, estimate_issue
from baechi.measure.hooks import measure
from baechi.measure.host import host
from baechi.measure.launch import launch_seconds
from baechi.measure.layers import measure_layers

__all__ = [
    "estimate",
    "estimate_additions",
    "estimate_issue",
    "host",
    "launch_seconds",
    "links",
    "measure",
    "measure_layers",
]
