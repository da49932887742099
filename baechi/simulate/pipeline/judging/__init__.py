"""Costs of a pipeline -> how good its orders can be.

In:    placements to compare; or costs, how many microbatches, and the step of an order.
Out:   quick estimates of steps; a time that no order can beat, closer than the quick one.
Start: `quick`; then `closer`.
"""

from baechi.simulate.pipeline.judging.closer import closer_bound_s
from baechi.simulate.pipeline.judging.quick import QuickStep

__all__ = ["QuickStep", "closer_bound_s"]
