"""What a call is handed that is no tensor, and may be written: lists, dicts, caches.

    items = []; model(x, items)     each microbatch gets a list of its own
    forward: items.append(h)        which would be lost: refused

What forward takes out of a container of its own changes nothing for the caller.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import nn

from baechi.errors import UNSPLIT_CURE, UnsplittableCall
from baechi.records.inputs import Inputs
from baechi.torchlib.modules.as_found import Keeper
from baechi.torchlib.modules.tables import content_of, differ, items_of
from baechi.torchlib.tensors.pytree import map_tensors

_COPIED = (set, deque)
"""Containers that are no values of nested ones (`map_tensors`), and copied all the same."""


def objects_in(value: Any) -> list[Any]:
    """The objects in an input that are neither tensors, plain data nor containers."""
    found: list[Any] = []
    map_tensors(lambda tensor: tensor, value, other=found.append)
    return [one for one in found if not isinstance(one, (*_COPIED, nn.Module, type)) and not callable(one)]


def tensors_behind(item: Any) -> list[torch.Tensor]:
    """The tensors that an object leads to."""
    keeper = Keeper("none")
    keeper.keep(item)
    return [one for one in keeper.seen.values() if isinstance(one, torch.Tensor)]


def may_be_written(item: Any) -> bool:
    """Whether an object has attributes or containers that a model's code may write."""
    keeper = Keeper("none")
    keeper.keep(item)
    return not isinstance(item, Enum) and bool(keeper.containers)


def own_of(
    inputs: Inputs, change: Callable[[torch.Tensor], torch.Tensor], cut: Mapping[int, Any] | None = None
) -> Inputs:
    """Inputs with other tensors, and with containers of their own; other objects are the same."""
    memo: dict[int, Any] = {}

    def note(item: Any) -> None:
        if not isinstance(item, _COPIED):
            memo[id(item)] = item

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        memo[id(tensor)] = change(tensor)
        return tensor

    values = inputs.args, inputs.kwargs
    if all(isinstance(one, torch.Tensor) or one is None for one in (*inputs.args, *inputs.kwargs.values())):
        args, kwargs = map_tensors(change, values)
        return Inputs(*args, **kwargs)
    map_tensors(changed, values, other=note)
    for key, some in (cut or {}).items():
        memo[key] = copy.deepcopy(some, memo) if isinstance(some, (list, tuple)) else some
    args, kwargs = copy.deepcopy(values, memo)
    return Inputs(*args, **kwargs)


@contextmanager
def handed_kept(inputs: Inputs) -> Iterator[None]:
    """Put back what is written to containers and objects that a call is handed."""
    keeper = _noted(inputs.args, inputs.kwargs)
    try:
        yield
    finally:
        keeper.put_back()


@contextmanager
def unwritten_if_failed(inputs: Inputs) -> Iterator[None]:
    """Put it back if what runs in this context fails: objects are handed to all microbatches."""
    keeper = _noted(inputs.args, inputs.kwargs)
    try:
        yield
    except BaseException:
        keeper.put_back()
        raise


class Handed:
    """The containers and objects that a microbatch is handed, as they are before its forward.

    Args:
        named: its inputs, by name.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._tables = {
            name: (value, _noted((value,), {}).containers)
            for name, value in named.items()
            if value is not None and not isinstance(value, torch.Tensor)
        }

    def check(self) -> None:
        """Forward is over."""
        for name, (value, tables) in self._tables.items():
            for table, before in tables:
                now = content_of(table)
                if differ(now, before) and _has_more(now, before):
                    raise UnsplittableCall(
                        f"forward writes to {name}, a {type(value).__name__} that the call was given. Each "
                        "microbatch has one of its own, and what it writes would be lost: return it, keep it "
                        f"in the model, or {UNSPLIT_CURE}",
                        writes=True,
                    )


def _noted(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Keeper:
    """The containers and objects among inputs; of a module, the attributes are kept elsewhere."""
    keeper = Keeper("none")
    for value in (*args, *kwargs.values()):
        if not isinstance(value, (torch.Tensor, nn.Module, str, bytes, int, float, type(None))):
            keeper.keep(value)
    return keeper


def _has_more(now: Any, before: Any) -> bool:
    """Whether a container holds what it did not hold before."""
    if isinstance(now, bytes):
        return True
    if isinstance(now, dict):
        return any(key not in before or before[key] is not value for key, value in now.items())
    known = {id(item) for item in items_of(before)}
    return any(id(item) not in known for item in items_of(now))
