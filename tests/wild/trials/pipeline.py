"""One model with its step in microbatches, beside the plain loop over its parts."""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Literal

from run.pipeline.by_loop import WithLoss
from torch import nn

import baechi
from baechi.records.inputs import Inputs
from wild.specimen import Specimen
from wild.trials import by_loop, two_steps
from wild.trials.common import Record, Report, seed, tried
from wild.trials.ways import cluster
from wild.verdict import Verdict


@dataclass(frozen=True)
class Way:
    """How the step is split, placed and ordered.

    Args:
        microbatches: into how many parts.
        rows: how many rows the batch has.
        devices: how many there are.
        placer: who places; `"cuts"` looks for equal loads, and orders.
        loss: returned by the model, made by a function of its outputs, or by the caller of the joined ones.
        order: of the tasks.
        apart: whether gradients of weights are tasks of their own.
    """

    microbatches: int
    rows: int
    devices: int
    placer: str
    loss: Literal["inside", "function", "none"]
    order: str
    apart: bool = False

    def __str__(self) -> str:
        apart = ", weights apart" * self.apart
        return (
            f"{self.rows} rows by {self.microbatches}, {self.placer}, loss {self.loss}, {self.order}{apart}"
        )


WAYS = (
    Way(2, 5, 3, "random:1", "inside", "1f1b"),
    Way(4, 4, 2, "cuts", "function", "auto"),
    Way(2, 4, 3, "random:2", "none", "interleaved"),
    Way(4, 4, 3, "random:3", "inside", "gpipe", apart=True),
)


def attempt(specimen: Specimen, version: str, report: Report) -> Record:
    """Try a model in microbatches, in all ways.

    Args:
        specimen: the model.
        version: its library's version.
        report: is told what is about to be done.

    Returns:
        All verdicts.
    """
    return tried(specimen, version, report, {str(way): (way.rows, partial(_by, way)) for way in WAYS})


def _by(way: Way, pristine: nn.Module, batch: Inputs) -> Verdict:
    model = WithLoss(pristine, by_loop.loss_of) if way.loss == "inside" else pristine
    plainly = partial(two_steps.plain, microbatches=way.microbatches, loss=way.loss)
    return two_steps.judged(plainly, partial(_pipelined, way), model, batch)


def _pipelined(way: Way, model: nn.Module, batch: Inputs) -> two_steps.Found:
    pipeline = _pipeline(way, copy.deepcopy(model), copy.deepcopy(batch))
    loss = by_loop.loss_beside if way.loss == "function" else None
    weights = "rows" if way.loss == "inside" else None  # else evidence has to find them
    baechi.distribute(model.train(), plan=pipeline, loss=loss, loss_weights=weights)
    return two_steps.distributed(model, batch, pipeline.plan.cluster, way.loss, way.rows)


def _pipeline(way: Way, model: nn.Module, batch: Inputs) -> baechi.Pipeline:
    seed()
    devices, number = cluster(way.devices), way.microbatches
    graph = baechi.profile(
        model.train(),
        batch,
        cluster=devices,
        training=True,
        source="estimate",
        microbatches=number,
        weights_apart=way.apart,
    )
    if way.placer == "cuts":
        return baechi.place(graph, devices, microbatches=number, effort=0)
    return baechi.pipeline(baechi.place(graph, devices, way.placer), number, way.order)
