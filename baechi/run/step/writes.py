"""Which of its arguments a function writes in place."""

import functools
import inspect
from typing import Any

import torch

from baechi.cost.anchor import writes_first
from baechi.torchlib.operators import facts_of, writes_of
from baechi.torchlib.tensors.pytree import tensors_in

_WRITE_UNSAID = frozenset({"batch_norm", "instance_norm", "native_batch_norm", "batch_norm_update_stats"})
"""Write running statistics."""


def written_in_place(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that a function writes in place: by its name, `out=`, `inplace=`, `max_norm=`."""
    written = list(tensors_in(kwargs.get("out")))
    if not args:
        return written
    if not written and writes_first(name):
        written = list(tensors_in(args[0]))
    for argument, index in (("inplace", 0), ("max_norm", 1)):
        position = _position(func, argument)
        asked = kwargs.get(argument) or (position is not None and position < len(args) and args[position])
        if asked and index < len(args) and isinstance(args[index], torch.Tensor):
            written.append(args[index])
    return written


def touched(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that a function writes in place, those among them of which it does not say so."""
    found = written_in_place(func, name, args, kwargs)
    if writes_unsaid(name):
        found += tensors_in(args[1:], kwargs)  # the statistics are some of these
    elif isinstance(func, torch._ops.OpOverload):  # a custom operator, whatever its name
        found += writes_of(facts_of(func), args, kwargs)
    return found


def writes_unsaid(name: str) -> bool:
    """Whether a function writes what it is given and no version counter moves."""
    return name in _WRITE_UNSAID


@functools.cache
def _position(func: Any, argument: str) -> int | None:
    """Where a function of `torch.nn.functional` takes an argument by position."""
    if not inspect.isfunction(func):
        return None
    names = list(inspect.signature(func, follow_wrapped=False).parameters)
    return names.index(argument) if argument in names else None
