"""One model with its largest layer in three tiles, in a plain step and in one of two microbatches."""

from functools import partial
from typing import Any

from torch import nn

import baechi
from baechi.records.inputs import Inputs
from wild.specimen import Specimen
from wild.trials import by_loop, two_steps
from wild.trials.common import Record, Report, seed, tried
from wild.trials.ways import cluster
from wild.verdict import Kind, Verdict

ROWS, TILES = 4, 3

_KINDS = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)

WAYS = ((1, "random:1"), (1, "round-robin"), (2, "random:2"))
"""Microbatches, and who places."""


def attempt(specimen: Specimen, version: str, report: Report) -> Record:
    """Try a model with its largest layer in tiles.

    Tiles sum up in another order, so all is compared in double precision, up to rounding.

    Args:
        specimen: the model.
        version: its library's version.
        report: is told what is about to be done.

    Returns:
        All verdicts.
    """
    ways = {f"{placer}, {number} parts": (ROWS, partial(_by, number, placer)) for number, placer in WAYS}
    return tried(specimen, version, report, ways)


def _by(number: int, placer: str, pristine: nn.Module, batch: Inputs) -> Verdict:
    name = largest(pristine)
    if name is None:
        return Verdict(Kind.PLAIN_FAILS, "it has no layer that can be split")
    plainly = partial(two_steps.plain, microbatches=number, loss="none" if number == 1 else "function")
    return two_steps.judged_in_double(plainly, partial(_split, name, number, placer), pristine, batch)


def _split(name: str, number: int, placer: str, model: nn.Module, batch: Inputs) -> two_steps.Found:
    devices = cluster()
    seed()
    pipelined: dict[str, Any] = {"microbatches": number, "loss": _loss} if number > 1 else {}
    baechi.distribute(
        model.train(),
        batch,
        cluster=devices,
        split={name: TILES},
        placer=placer,
        effort=0,
        source="estimate",
        **pipelined,
    )
    return two_steps.distributed(model, batch, devices, "function" if pipelined else "none", ROWS)


def _loss(result: Any, target: Any) -> Any:
    return by_loop.loss_of(result)


def largest(model: nn.Module) -> str | None:
    """The name of the layer with the largest weight that there is a rule for; None if there is none.

    Args:
        model: any model.
    """
    found = [
        (module.weight.numel(), name)
        for name, module in model.named_modules()
        if type(module) in _KINDS and getattr(module, "groups", 1) == 1
    ]
    return max(found)[1] if found else None
