"""One model whose repeated blocks run again in backward, in a plain step and in one of two microbatches."""

from typing import Any

from torch import nn

from wild.specimen import Specimen
from wild.trials.asked import tried_asking
from wild.trials.common import Record, Report
from wild.trials.two_steps import judged

WAYS = ((1, "random:1"), (2, "random:2"))
"""Microbatches, and who places."""


def attempt(specimen: Specimen, version: str, report: Report) -> Record:
    """Try a model with `recompute=` for its longest list of modules; see `tried_asking`."""
    return tried_asking(specimen, version, report, WAYS, _asked, judged)


def _asked(model: nn.Module) -> dict[str, Any] | None:
    name = blocks(model)
    return None if name is None else {"recompute": [name]}


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
