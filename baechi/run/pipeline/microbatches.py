"""How a model's step is split into microbatches: the pipeline, its way, and what each part's loss counts."""

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from baechi.records.pipeline import Pipeline
from baechi.run.pipeline.batch.cuts import Cuts
from baechi.run.pipeline.batch.judge import Judge
from baechi.run.pipeline.batch.partition import How, Split
from baechi.run.pipeline.batch.shares import Told
from baechi.run.pipeline.graph.seams import Seams
from baechi.run.pipeline.lanes.ahead import Ahead
from baechi.run.pipeline.lanes.own_state import WrittenTables
from baechi.run.pipeline.lanes.route import Route

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

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
        by_function: by input's name, a function that divides it, or what each microbatch gets: what a file of
            the pipeline does not hold.
        written: what of the model is written in forward, as far as it was learned.
        ahead: what is sent as soon as it is made, as far as it was learned.
        seams: which ways of the code were looked at.
        cuts: how batches are divided, by kind.
        alone: held by a thread during a step: what the model's code writes is kept apart by microbatch.
        least_rows: how many rows each microbatch had, of the call where that was most.
        writing: kinds of calls that were seen to write what they are given.
        tells_no_more: whether it was said that a call runs unsplit.
        trains: the thread of the last call with gradients; None if there was none.
    """

    pipeline: Pipeline
    loss: Loss | None = None
    told: Told | None = None
    accepts: bool = False
    by_function: Mapping[str, How] = field(default_factory=dict)
    written: WrittenTables = field(default_factory=WrittenTables)
    ahead: Ahead = field(default_factory=Ahead)
    seams: Seams = field(default_factory=Seams)
    cuts: dict[Hashable, Cuts] = field(default_factory=dict)
    alone: threading.RLock = field(default_factory=threading.RLock, compare=False)
    least_rows: int = 0
    writing: set[Hashable] = field(default_factory=set)
    tells_no_more: bool = False
    trains: threading.Thread | None = field(default=None, compare=False)
    _smaller: dict[int, Pipeline] = field(default_factory=dict)

    @cached_property
    def split(self) -> Split:
        """How inputs are divided."""
        return {**self.pipeline.split, **self.by_function}

    def pipeline_for(self, model: nn.Module, rows: int | None) -> Pipeline:
        """The pipeline of a batch: with fewer rows than microbatches one for each row.

        Where batch norms train, a microbatch has two rows at least if each had as many before: torch refuses
        statistics of one.
        """
        number = usual = self.pipeline.microbatches
        if rows:
            number = min(usual, rows)
            few = max(1, min(usual, rows // 2))
            if few < number and self.least_rows > 1 and any(map(_trains_on_rows, model.modules())):
                number = few
        if number == usual:
            return self.pipeline
        if number not in self._smaller:  # the list without the others' tasks keeps every task behind its own
            order = tuple([task for task in self.pipeline.order if task.microbatch < number])
            self._smaller[number] = replace(
                self.pipeline, microbatches=number, order=order, tried=(), unsplit=None, dry=None
            )
        return self._smaller[number]

    @cached_property
    def route(self) -> Route:
        """The way of a microbatch through the pipeline's runs."""
        return Route(self.pipeline)

    @cached_property
    def judge(self) -> Judge:
        """What is known of the rows of batches."""
        return Judge(self.told, accepts=self.accepts)

    @property
    def may_look(self) -> bool:
        """Whether a look is safe: it would undo what a thread that trains writes to weights meanwhile."""
        trains = self.trains
        return trains is None or trains is threading.current_thread() or not trains.is_alive()

    def anew(self) -> "Microbatches":
        """The same for a copy of the model."""
        return Microbatches(self.pipeline, self.loss, self.told, self.accepts, self.by_function)

    def __reduce__(self) -> tuple[Any, ...]:
        return Microbatches, (self.pipeline, self.loss, self.told, self.accepts, self.by_function)


def _trains_on_rows(module: nn.Module) -> bool:
    return isinstance(module, _BATCH_NORMS) and module.training
