"""Plan -> timeline: when each layer and transfer runs, and how many bytes each device holds.

In:    a `Plan`, its graph, its cluster.
Out:   a `Timeline`, peaks by device, and bounds that no plan can beat.
Start: `step`, then `time/transfers` and `time/issue`.
"""

from baechi.simulate.bounds import least_peak_bytes, shortest_step_s
from baechi.simulate.step import Rehearsal, simulate

__all__ = ["Rehearsal", "least_peak_bytes", "shortest_step_s", "simulate"]
