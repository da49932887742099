"""Pipeline -> timeline: when the tasks of all microbatches run, and which order of them is the best.

In:    a `Plan` whose graph has the costs of one microbatch, a number of microbatches.
Out:   orders with their predicted steps and peaks; a `Timeline`; a bound that no order can beat.
Start: `costs`, `coster`, `list_scheduler`, `replay`; then `ordering/`.
"""

from baechi.simulate.pipeline.bounds import shortest_pipeline_s
from baechi.simulate.pipeline.coster import PipelineCoster
from baechi.simulate.pipeline.costs import PipelineCosts
from baechi.simulate.pipeline.memory import memory_of
from baechi.simulate.pipeline.ordering import (
    OrderLike,
    Tried,
    all_tried,
    best_of,
    check_order,
    costs_of,
    evaluated,
    fastest_of,
    improved,
    ordered,
    pipeline_of,
    recorded,
    simulate_pipeline,
    textbook,
)
from baechi.simulate.pipeline.quick import QuickStep
from baechi.simulate.pipeline.replay import Replay

__all__ = [
    "OrderLike",
    "PipelineCoster",
    "PipelineCosts",
    "QuickStep",
    "Replay",
    "Tried",
    "all_tried",
    "best_of",
    "check_order",
    "costs_of",
    "evaluated",
    "fastest_of",
    "improved",
    "memory_of",
    "ordered",
    "pipeline_of",
    "recorded",
    "shortest_pipeline_s",
    "simulate_pipeline",
    "textbook",
]
