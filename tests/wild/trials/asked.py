"""One model with something more asked of `distribute`, in a plain step and in one of two microbatches."""

from collections.abc import Callable
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

Asked = Callable[[nn.Module], dict[str, Any] | None]
"""What is asked for a model, by keyword of `distribute`; None if the model has nothing to ask it for."""

Judge = Callable[[two_steps.Steps, two_steps.Steps, nn.Module, Inputs], Verdict]


def tried_asking(
    specimen: Specimen,
    version: str,
    report: Report,
    ways: tuple[tuple[int, str], ...],
    asked: Asked,
    judge: Judge,
) -> Record:
    """Try a model with something asked for.

    Args:
        specimen: the model.
        version: its library's version.
        report: is told what is about to be done.
        ways: microbatches, and who places.
        asked: what is asked for.
        judge: compares the plain steps with ours.

    Returns:
        All verdicts.
    """

    def by(number: int, placer: str, pristine: nn.Module, batch: Inputs) -> Verdict:
        more = asked(pristine)
        if more is None:
            return Verdict(Kind.PLAIN_FAILS, "it has no module of that kind")
        plainly = partial(two_steps.plain, microbatches=number, loss="none" if number == 1 else "function")
        return judge(plainly, partial(_distributed, number, {"placer": placer} | more), pristine, batch)

    named = {f"{placer}, {number} parts": (ROWS, partial(by, number, placer)) for number, placer in ways}
    return tried(specimen, version, report, named)


def _distributed(number: int, more: dict[str, Any], model: nn.Module, batch: Inputs) -> two_steps.Found:
    devices = cluster()
    seed()
    if number > 1:
        more = more | {"microbatches": number, "loss": by_loop.loss_beside}
    baechi.distribute(model.train(), batch, cluster=devices, effort=0, source="estimate", **more)
    return two_steps.distributed(model, batch, devices, "function" if number > 1 else "none", ROWS)
