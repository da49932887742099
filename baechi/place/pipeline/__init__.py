"""Layer graph and cluster -> devices of layers for a step in microbatches.

In:    a placement problem whose graph has the costs of one microbatch, and a judge of placements.
Out:   placements by group, the best first.
Start: `cuts`, `balance`, then `search`; `outlook` says what is worth it.
"""

from baechi.place.pipeline.balance import balanced
from baechi.place.pipeline.cuts import cuts
from baechi.place.pipeline.outlook import outlook_s
from baechi.place.pipeline.search import Found, Judge, Verdict, searched

__all__ = ["Found", "Judge", "Verdict", "balanced", "cuts", "outlook_s", "searched"]
