"""One model whose repeated blocks run again in backward, in a plain step and in one of two microbatches."""

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

ROWS = 4

WAYS = ((1, "random:1"), (2, "random:2"))
"""Microbatches, and who places."""


def attempt(specimen: Specimen, version: str, report: Report) -> Record:
    """Try a model with `recompute=` for its longest list of modules.

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
    name = blocks(pristine)
    if name is None:
        return Verdict(Kind.PLAIN_FAILS, "it has no list of modules")
    plainly = partial(two_steps.plain, microbatches=number, loss="none" if number == 1 else "function")
    return two_steps.judged(plainly, partial(_again, name, number, placer), pristine, batch)


def _again(name: str, number: int, placer: str, model: nn.Module, batch: Inputs) -> two_steps.Found:
    devices = cluster()
    seed()
    pipelined: dict[str, Any] = {"microbatches": number, "loss": _loss} if number > 1 else {}
    baechi.distribute(
        model.train(),
        batch,
        cluster=devices,
        recompute=[name],
        placer=placer,
        effort=0,
        source="estimate",
        **pipelined,
    )
    return two_steps.distributed(model, batch, devices, "function" if pipelined else "none", ROWS)


def _loss(result: Any, target: Any) -> Any:
    return by_loop.loss_of(result)


def blocks(model: nn.Module) -> str | None:
    """The name of the list of modules with most weights in it; None if there is none.

    Args:
        model: any model.
    """
    found = [
        (sum([weight.numel() for weight in module.parameters()]), name)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and name
    ]
    return max(found)[1] if found else None
