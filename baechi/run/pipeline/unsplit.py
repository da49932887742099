"""Calls of a pipelined model that run as one step on the plan's devices, in place of microbatches."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import nn

from baechi.errors import BaechiError
from baechi.records.device_map import ROOT
from baechi.run.binding import binding_of
from baechi.torchlib.modules.intercept import is_replaced

_unsplit: ContextVar[tuple[nn.Module, ...]] = ContextVar("_unsplit", default=())


@contextmanager
def unsplit(model: nn.Module) -> Iterator[None]:
    """Within a `with` block, run calls of a model without microbatches, on its plan's devices.

    Numbers are those of the whole batch, in training too; a step takes the memory of the whole batch. It
    holds for the thread that entered the block. A model that has no microbatches runs as ever.

    Args:
        model: a distributed model, or a module around one.

    Raises:
        TypeError: it is not a module.
        BaechiError: no part of it is distributed.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"unsplit takes a distributed module, not {type(model).__name__}")
    roots = tuple([module for module in model.modules() if _is_root(module)])
    if not roots:
        raise BaechiError(f"this {type(model).__name__} is not distributed: there is nothing to run unsplit")
    token = _unsplit.set((*_unsplit.get(), *roots))
    try:
        yield
    finally:
        _unsplit.reset(token)


def runs_unsplit(model: nn.Module) -> bool:
    """Whether calls of a model run without microbatches now."""
    return id(model) in map(id, _unsplit.get())


def _is_root(module: nn.Module) -> bool:
    binding = binding_of(module)
    return is_replaced(module) if binding is None else binding.name == ROOT
