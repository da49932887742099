"""Who gets the next chunk: state machines in plain Python, without torch, threads or a clock.

In:    devices, batch sizes, and which chunks are complete.
Out:   for each chunk a target, and how many items it takes.
Start: `abstract`, then `hybrid`.
"""

from baechi.dispatch.schedulers.abstract import AbstractScheduler, Share
from baechi.dispatch.schedulers.hybrid import HybridScheduler
from baechi.dispatch.schedulers.rank import RankScheduler
from baechi.dispatch.schedulers.round_robin import RoundRobin
from baechi.dispatch.schedulers.simple import SimpleScheduler
from baechi.dispatch.schedulers.targets import Target

__all__ = [
    "AbstractScheduler",
    "HybridScheduler",
    "RankScheduler",
    "RoundRobin",
    "Share",
    "SimpleScheduler",
    "Target",
]
