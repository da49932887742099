"""Which dimension of each output grows with the items: the model runs twice, without values.

4 rows  ──▶ logits (4, 10)   loss ()       logits: dimension 0 grows
6 rows  ──▶ logits (6, 10)   loss ()       loss: none does
"""

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from baechi.backend import unwatched
from baechi.torchlib.fakes.at_work import fakes_at_work
from baechi.torchlib.modules.as_found import left_as_found
from baechi.torchlib.private.fakes import FakeTensorMode
from baechi.torchlib.random_state import random_states
from baechi.torchlib.tensors.pytree import map_tensors

logger = logging.getLogger(__name__)

Call = tuple[tuple[Any, ...], dict[str, Any]]


def shapes_of(model: nn.Module, calls: list[Call], *, values: bool = True) -> list[Any] | None:
    """What a model would return, with tensors that have shapes and no values.

    Where the model does not run without values, it runs with them, and is left as it was found.
    """
    with unwatched(), torch.no_grad():
        for run in (_without_values, _with_values) if values else (_without_values,):
            with left_as_found(model, contents="all" if run is _with_values else "no parameters"):
                try:
                    return run(model, calls)
                except Exception as error:  # the model's code may raise anything
                    logger.info("the model does not run to find how its outputs grow (%s)", error)
    return None


def results_of(model: nn.Module, calls: Sequence[Call]) -> list[Any]:
    """What a model returns where it lies, call after call; it is left as it was found."""
    with unwatched(), torch.no_grad(), left_as_found(model, contents="no parameters"):
        before = random_states()
        try:
            moved = [_moved(model, call) for call in calls]
            results = [model(*args, **kwargs) for args, kwargs in moved]
        except Exception as error:  # the model's code may raise anything
            logger.info("the model does not run with a row alone (%s)", error)
            return []
        return results if random_states() == before else []


def _without_values(model: nn.Module, calls: list[Call]) -> list[Any]:
    with ExitStack() as stack:
        mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(fakes_at_work())
        fake = functools.partial(map_tensors, functools.partial(_fake, mode.from_tensor))
        return [map_tensors(_on_meta, model(*fake(args), **fake(kwargs))) for args, kwargs in calls]


def _with_values(model: nn.Module, calls: list[Call]) -> list[Any]:
    moved = [_moved(model, call) for call in calls]
    return [map_tensors(_on_meta, model(*args, **kwargs)) for args, kwargs in moved]


def _moved(model: nn.Module, call: Call) -> Call:
    weight = next(model.parameters(), None)
    place = None if weight is None else weight.device
    args, kwargs = map_tensors(lambda tensor: tensor.detach().to(place or tensor.device, copy=True), call)
    return args, kwargs


def _fake(from_tensor: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor) if tensor.is_meta else from_tensor(tensor)


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def growing_dim(first: torch.Size, second: torch.Size, items: tuple[int, int]) -> int | None:
    """The dimension that grows with the items."""
    if len(first) != len(second):
        raise ValueError("its number of dimensions changes")
    changed = [dim for dim in range(len(first)) if first[dim] != second[dim]]
    if not changed:
        return None
    if len(changed) > 1 or first[changed[0]] * items[1] != second[changed[0]] * items[0]:
        raise ValueError(f"it is {tuple(first)} for {items[0]} items and {tuple(second)} for {items[1]}")
    return changed[0]
