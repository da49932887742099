"""Costs of a pipeline -> its order: every rule is tried, and the best ones are made better.

In:    a plan or its costs, how many microbatches; an order by name or by hand, or "auto".
Out:   orders with their predicted steps and peaks; a `Pipeline`, a `Timeline`.
Start: `choose`, `improve`; then `step`.
"""

from baechi.simulate.pipeline.ordering.choose import (
    Tried,
    all_tried,
    best_of,
    evaluated,
    fastest_of,
    textbook,
)
from baechi.simulate.pipeline.ordering.improve import improved
from baechi.simulate.pipeline.ordering.step import (
    OrderLike,
    check_order,
    costs_of,
    ordered,
    pipeline_of,
    recorded,
    simulate_pipeline,
)

__all__ = [
    "OrderLike",
    "Tried",
    "all_tried",
    "best_of",
    "check_order",
    "costs_of",
    "evaluated",
    "fastest_of",
    "improved",
    "ordered",
    "pipeline_of",
    "recorded",
    "simulate_pipeline",
    "textbook",
]
