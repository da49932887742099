"""Plan in, timeline out: when what will run where, and how full each device will get.

    step       `simulate`: forward and backward put together
    engine     the event loop of a phase; watcher: who is told what happens in it
    stage      the plan as indexes; parcels: what moves between its layers
    program    what the host does, one after the other; launches: in which order; host: and when
    memory     how full each device is, by watching; recorder: and when
    ledger     the same where the host's program is known; backward_ledger, gradients: in backward
    bounds     no step can be shorter

Read `parcels` first, then `engine`.
"""

from baechi.simulate.bounds import least_peak_bytes, shortest_step_s
from baechi.simulate.step import Rehearsal, simulate

__all__ = ["Rehearsal", "least_peak_bytes", "shortest_step_s", "simulate"]
