"""Plan in, timeline out: when what will run where, and how full each device will get.

    step       `simulate`: forward and backward put together
    engine     the event loop of a phase; watcher: who is told what happens in it
    stage      the plan as indexes; parcels: what moves between its layers
    memory     how full each device is, by watching; recorder: and when
    bounds     no step can be shorter

Read `parcels` first, then `engine`.
"""

from baechi.simulate.bounds import least_peak_bytes, shortest_step_s
from baechi.simulate.step import Rehearsal, simulate

__all__ = ["Rehearsal", "least_peak_bytes", "shortest_step_s", "simulate"]
