"""How a model's step is split into microbatches: the pipeline, its way, and what each part's loss counts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from baechi.records.pipeline import Pipeline
from baechi.run.pipeline.own_state import WrittenTables
from baechi.run.pipeline.route import Route
from baechi.run.pipeline.splitting import Parted

Shares = Callable[[Parted], list[Any]]
"""From the parts of a batch, what the loss of each counts: numbers, or scalars on a device."""


def by_rows(parts: Parted) -> list[Any]:
    """What the losses of microbatches count if each is a mean over its rows.

    Args:
        parts: the parts of the batch.
    """
    total = sum(parts.rows)
    return [rows / total for rows in parts.rows]


def summed(parts: Parted) -> list[Any]:
    """What the losses of microbatches count if the whole batch's is their sum.

    Args:
        parts: the parts of the batch.
    """
    return [1.0] * len(parts.rows)


@dataclass
class Microbatches:
    """How a model's step is split.

    Args:
        pipeline: the list of tasks.
        loss: from what the model returned and the target, the loss; None if the model returns it.
        shares: what the loss of each microbatch counts.
        written: what of the model is written in forward, as far as it was learned.
    """

    pipeline: Pipeline
    loss: Callable[[Any, Any], torch.Tensor] | None = None
    shares: Shares = field(default=by_rows)
    written: WrittenTables = field(default_factory=WrittenTables)

    @cached_property
    def route(self) -> Route:
        """The way of a microbatch through the pipeline's runs."""
        return Route(self.pipeline)
