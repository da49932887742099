"""Checks what `baechi.dispatch` was given."""

from typing import Any

from torch import nn

from baechi.dispatch.chunks import AbstractChunks, Rows
from baechi.dispatch.dispatched_model import Dispatched, Workers
from baechi.dispatch.failures import Kinds
from baechi.dispatch.loop import Rules
from baechi.dispatch.schedulers.abstract import AbstractScheduler, whole_number
from baechi.dispatch.schedulers.simple import SimpleScheduler


def dispatched(
    model: Any,
    scheduler: AbstractScheduler | None,
    chunks: AbstractChunks | None,
    *,
    workers: Workers,
    out: Any,
    recoverable: Kinds,
    retry: int,
    timeout_s: float | None,
) -> Dispatched:
    """See `baechi.dispatch`."""
    if not isinstance(model, nn.Module) and (not callable(model) or isinstance(model, type)):
        raise TypeError(f"model is {model!r}: it has to be a torch.nn.Module, or a function that makes one")
    if scheduler is None:
        weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        scheduler = SimpleScheduler("cpu" if weight is None else str(weight.device))
    if not isinstance(scheduler, AbstractScheduler):
        raise TypeError(
            f"scheduler is of type {type(scheduler).__name__}: it has to be one of baechi's schedulers"
        )
    if chunks is not None and not isinstance(chunks, AbstractChunks):
        raise TypeError(
            f"chunks is of type {type(chunks).__name__}: it has to be baechi.Rows or baechi.HaloTiles"
        )
    if workers not in ("inline", "thread", "process"):
        raise ValueError(f"there are no workers {workers!r}: 'inline', 'thread' or 'process'")
    if timeout_s is not None and workers != "process":
        raise ValueError(f"a timeout is for workers='process': {workers} workers cannot be stopped")
    rules = Rules(recoverable, whole_number(retry, "retry", 0))
    return Dispatched(model, scheduler, chunks or Rows(), workers, out, rules, timeout_s)
