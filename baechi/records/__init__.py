"""Plain records that the stages hand to each other: no torch, checked when built, JSON in and out.

In:    values, JSON text, files.
Out:   `LayerGraph`, `Cluster`, `Plan`, `Timeline`, `Inputs`.
Start: `graph`, then `plan`.
"""

from baechi.records.cluster import Cluster
from baechi.records.device import Device, Host, HostCosts, Link
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.records.plan import Candidate, Plan
from baechi.records.timeline import Span, Timeline

__all__ = [
    "Candidate",
    "Cluster",
    "Device",
    "Host",
    "HostCosts",
    "Inputs",
    "LayerGraph",
    "Link",
    "Plan",
    "Span",
    "Timeline",
]
