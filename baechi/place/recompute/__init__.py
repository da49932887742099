"""Which modules run again in backward, so that a model fits.

In:    a layer graph, and what places it.
Out:   a plan whose graph notes the modules (`plan.recompute`).
Start: `choose`, then `candidates`.
"""

from baechi.place.recompute.choose import Recompute, placed_with

__all__ = ["Recompute", "placed_with"]
