"""One model with its largest layer in three shards, in a plain step and in one of two microbatches."""

from typing import Any

from torch import nn

from wild.specimen import Specimen
from wild.trials.asked import tried_asking
from wild.trials.common import Record, Report
from wild.trials.two_steps import judged_in_double

TILES = 3

_KINDS = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)

WAYS = ((1, "random:1"), (1, "round-robin"), (2, "random:2"))
"""Microbatches, and who places."""


def attempt(specimen: Specimen, version: str, report: Report) -> Record:
    """Try a model with its largest layer in shards; see `tried_asking`.

    Shards sum up in another order, so all is compared in double precision, up to rounding.
    """
    return tried_asking(specimen, version, report, WAYS, _asked, judged_in_double)


def _asked(model: nn.Module) -> dict[str, Any] | None:
    name = largest(model)
    return None if name is None else {"split": {name: TILES}}


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
