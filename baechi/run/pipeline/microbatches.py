"""How a model's step is split into microbatches: the pipeline, its way, and what each part's loss counts."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from baechi.records.pipeline import Pipeline
from baechi.run.pipeline.batch.judge import Judge
from baechi.run.pipeline.batch.shares import Told
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
        told: what the user says that the loss of each microbatch counts; None finds out.
        accepts: whether microbatches may train something else than the whole batch.
        written: what of the model is written in forward, as far as it was learned.
        ahead: what is sent as soon as it is made, as far as it was learned.
        seams: which ways of the code were looked at.
        alone: held by a thread during a step: what the model's code writes is kept apart by microbatch.
    """

    pipeline: Pipeline
    loss: Loss | None = None
    told: Told | None = None
    accepts: bool = False
    written: WrittenTables = field(default_factory=WrittenTables)
    ahead: Ahead = field(default_factory=Ahead)
    seams: Seams = field(default_factory=Seams)
    alone: threading.RLock = field(default_factory=threading.RLock, compare=False)

    @cached_property
    def route(self) -> Route:
        """The way of a microbatch through the pipeline's runs."""
        return Route(self.pipeline)

    @cached_property
    def judge(self) -> Judge:
        """What is known of the rows of batches."""
        return Judge(self.told, accepts=self.accepts)

    def anew(self) -> "Microbatches":
        """The same for a copy of the model."""
        return Microbatches(self.pipeline, self.loss, self.told, self.accepts)

    def __reduce__(self) -> tuple[Any, ...]:
        return Microbatches, (self.pipeline, self.loss, self.told, self.accepts)
