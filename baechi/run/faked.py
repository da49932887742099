"""Fake tensors in place of all that hangs on a layer, while its outcome is foreseen.

Torch runs an operation on real tensors alone for real, also under a fake mode: counting a batch would
count it, on the caller's stream, beside a launch of the same layer that counts on its own.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from baechi.backend.nest import map_tensors, tensors_in
from baechi.run.layer_state import REGISTERED

Fake = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def faked(layer: nn.Module | None, fake: Fake, containers: list[Any]) -> Iterator[None]:
    """While this is open, parameters, buffers and plain tensors of a layer are fake.

    What the layer puts in their place stays, for who looks whether it did.

    Args:
        layer: the layer; None for a function, on which nothing hangs.
        fake: what stands for a tensor; the same for the same one.
        containers: gets each container that had to be copied, as `copied` says.
    """
    swapped = []
    for table, names in _tables(layer) if layer is not None else ():
        for name in names:
            value = table[name]
            if next(tensors_in(value), None) is not None:
                table[name] = made = copied(fake, value, containers)
                swapped.append((table, name, value, made))
    try:
        yield
    finally:
        for table, name, value, made in swapped:
            if table.get(name) is made:
                table[name] = value


def copied(fake: Fake, value: Any, containers: list[Any]) -> Any:
    """A value with fake tensors in it.

    Args:
        fake: what stands for a tensor.
        value: nested as it is.
        containers: gets each list and dict of the copy, and what is in it now.
    """
    if isinstance(value, tuple):
        items = [copied(fake, item, containers) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if not isinstance(value, (list, dict)):
        return map_tensors(fake, value)
    made = copy.copy(value)
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        made[key] = copied(fake, value[key], containers)
    containers.append((made, copy.copy(made)))
    return made


def _tables(layer: nn.Module) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The tables on a layer and its parts that hold tensors, with the names to look at."""
    for part in layer.modules():
        own = vars(part)
        yield part._parameters, list(part._parameters)
        yield part._buffers, list(part._buffers)
        yield own, [name for name in own if name not in REGISTERED]
