"""How a user asks for a step to be split."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from baechi.records.inputs import Inputs
from baechi.records.pipeline import Pipeline
from baechi.records.pipeline.pipeline import ITEMS, KeptSplit
from baechi.run.pipeline.batch.partition import Split, is_own
from baechi.run.pipeline.batch.shares import Told
from baechi.run.pipeline.microbatches import Loss, Microbatches
from baechi.simulate.pipeline import OrderLike, check_order
from baechi.verbs.given import refuse_apart_again

Number = int | Literal["auto"]

LossWeights = Literal["rows", "sum", "labels"] | Callable[[list[Inputs]], list[Any]]
"""What losses of microbatches count: by rows, all the same, by labels, or by a function of their inputs."""

Coupled = Literal["refuse", "accept"]
"""What to do if microbatches train something else than the whole batch."""


@dataclass(frozen=True)
class Splitting:
    """How a user wants a step to be split.

    Args:
        microbatches: into how many parts, or `"auto"`.
        loss: computes the loss from what the model returns and the call's `target`.
        split: by input's name, how it is divided; see `distribute`.
        loss_weights: what the loss of each part counts; None finds out.
        order: the order of the tasks.
        coupled: what to do if the parts train something else than the whole batch.
    """

    microbatches: Number
    loss: Loss | None = None
    split: Split | None = None
    loss_weights: LossWeights | None = None
    order: OrderLike = "auto"
    coupled: Coupled = "refuse"

    def __post_init__(self) -> None:
        number = self.microbatches
        if number != "auto" and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"microbatches is {number!r}: a whole number of at least 1, or 'auto'")
        known = self.loss_weights in (None, "rows", "sum", "labels") or callable(self.loss_weights)
        if not known:
            raise ValueError(f"loss_weights is {self.loss_weights!r}: 'rows', 'sum', 'labels', or a function")
        for name, how in (self.split or {}).items():
            if not (how is None or how == ITEMS or isinstance(how, int) or is_own(how)):
                raise ValueError(
                    f"split says {how!r} of the input {name!r}: a dimension, 'items', None for what goes "
                    "whole, a function (name, value, microbatches) that returns what each gets, or a list "
                    "of that"
                )
        if self.loss is not None and not callable(self.loss):
            raise ValueError(f"loss is {self.loss!r}: a function of what the model returns and of the target")
        check_order(self.order)
        if self.coupled not in ("refuse", "accept"):
            raise ValueError(f"coupled is {self.coupled!r}: 'refuse' or 'accept'")

    @property
    def kept_split(self) -> dict[str, KeptSplit]:
        """What of `split` a pipeline, and its file, holds: no functions."""
        return {
            name: cast(KeptSplit, how)
            for name, how in (self.split or {}).items()
            if how is None or isinstance(how, (int, str))
        }

    def microbatches_of(self, pipeline: Pipeline) -> Microbatches:
        """What the runtime needs."""
        told = None if self.loss_weights is None else Told(self.loss_weights)
        own = {name: how for name, how in (self.split or {}).items() if is_own(how)}
        return Microbatches(pipeline, self.loss, told, self.coupled == "accept", own)


def splitting_of(
    microbatches: Number | None,
    plan: object,
    loss: Loss | None,
    split: Split | None,
    loss_weights: LossWeights | None,
    order: OrderLike,
    coupled: Coupled = "refuse",
) -> Splitting | None:
    """How a user wants a step to be split; None for a plain step."""
    if isinstance(plan, Pipeline):
        said = [name for name, how in (split or {}).items() if not is_own(how)]
        if microbatches not in (None, plan.microbatches) or said or order != "auto":
            raise ValueError(
                "a pipeline says how many microbatches there are, how inputs are split, and the order; only "
                "functions that divide inputs can be given with it"
            )
        return Splitting(
            plan.microbatches, loss, {**plan.split, **(split or {})}, loss_weights, coupled=coupled
        )
    if microbatches is None:
        given = [one is not None for one in (loss, split, loss_weights)]
        if any(given) or order != "auto" or coupled != "refuse":
            raise ValueError(
                "loss, split, loss_weights, order and coupled go with microbatches: say how many"
            )
        return None
    if plan is not None:
        raise ValueError(
            "a plan has the costs of a whole batch: order its microbatches with baechi.pipeline(plan, "
            "number), and give the pipeline"
        )
    made = Splitting(microbatches, loss, split, loss_weights, order, coupled)
    return None if microbatches == 1 and loss is None else made


def refuse_apart(weights_apart: bool, splitting: Splitting | None, plan: object, recompute: object) -> None:
    """Raise if the backward of weights cannot be apart."""
    if not weights_apart:
        return
    if plan is not None:
        raise ValueError("a pipeline made before says whether the backward of weights is apart")
    if splitting is None:
        raise ValueError("weights_apart goes with microbatches: say how many")
    refuse_apart_again(recompute)
