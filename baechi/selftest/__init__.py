"""The self test: are the numbers right on these devices, and how true is what is predicted of them?

    ten models x plain, pipelined, split, compiled  ─▶  losses and weights beside those of a plain loop
    every ordered pair of devices                   ─▶  what was sent, there and compared
    a larger model                                  ─▶  the step and the peaks, predicted and measured

In:    a cluster.
Out:   `Found`: a table for a person, JSON for an issue.
Start: `trials`.
"""

from baechi.selftest.rows import Found, Row
from baechi.selftest.trials import devices_here, selftest

__all__ = ["Found", "Row", "devices_here", "selftest"]
