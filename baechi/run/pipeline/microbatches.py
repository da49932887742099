"""How a model's step is split into microbatches: the pipeline, its way, and what each part's loss counts."""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from baechi.records.pipeline import Pipeline
from baechi.run.pipeline.batch.dimensions import Dimensions
from baechi.run.pipeline.batch.evidence import Evidence
from baechi.run.pipeline.batch.shares import Weigh
from baechi.run.pipeline.graph.seams import Seams
from baechi.run.pipeline.lanes.ahead import Ahead
from baechi.run.pipeline.lanes.own_state import WrittenTables
from baechi.run.pipeline.lanes.route import Route

Loss = Callable[[Any, Any], torch.Tensor]
"""From what the model returned and the target, the loss."""


@dataclass
class Microbatches:
    """How a model's step is split.

    Args:
        pipeline: the list of tasks.
        loss: computes the loss; None if the model returns it.
        weigh: what the loss of each microbatch counts; None finds out by evidence.
        written: what of the model is written in forward, as far as it was learned.
        ahead: what is sent as soon as it is made, as far as it was learned.
        seams: which ways of the code were looked at.
        dimensions: along which dimension outputs are joined, by the kind of call, as far as it was looked at.
        alone: held by a thread during a step: what the model's code writes is kept apart by microbatch.
    """

    pipeline: Pipeline
    loss: Loss | None = None
    weigh: Weigh | None = None
    written: WrittenTables = field(default_factory=WrittenTables)
    ahead: Ahead = field(default_factory=Ahead)
    seams: Seams = field(default_factory=Seams)
    dimensions: dict[Hashable, Dimensions] = field(default_factory=dict)
    alone: threading.RLock = field(default_factory=threading.RLock, compare=False)

    @cached_property
    def route(self) -> Route:
        """The way of a microbatch through the pipeline's runs."""
        return Route(self.pipeline)

    @cached_property
    def evidence(self) -> Evidence:
        """Which rules weigh the losses of the microbatches."""
        return Evidence(self.pipeline.split)

    def anew(self) -> "Microbatches":
        """The same for a copy of the model."""
        return Microbatches(self.pipeline, self.loss, self.weigh)

    def __reduce__(self) -> tuple[Any, ...]:
        return Microbatches, (self.pipeline, self.loss, self.weigh)
