"""What hangs on a layer when the code reaches it, there again while it launches.

The code may change a layer between two calls (`layer.scale = 2`, `drop.eval()`, `functional_call`
with other weights). A layer that waits computes with what hung on it when it was reached.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from baechi.backend.nest import tensors_in

_CONTAINERS = (dict, list, set)


class LayerState:
    """The attributes of a layer and its parts: registered tables, flags, plain containers.

    Args:
        layer: the layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        self._found = [(table, table.copy()) for table in _tables(layer)]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """While this is open, all is as it was found."""
        now = [(table, table.copy()) for table, found in self._found if _differ(table, found)]
        for table, found in self._found if now else ():
            _fill(table, found)
        try:
            yield
        finally:
            for table, present in now:
                _fill(table, present)


def tensors_on(layer: nn.Module) -> list[torch.Tensor]:
    """Tensors that hang on a layer as plain attributes, which it may read without being given them.

    Args:
        layer: the layer.
    """
    return [tensor for part in layer.modules() for value in _plain(part) for tensor in tensors_in(value)]


def _plain(module: nn.Module) -> list[Any]:
    own = vars(module)
    return [value for name, value in own.items() if name not in _REGISTERED and isinstance(value, _MAY_HOLD)]


_REGISTERED = frozenset(vars(nn.Module()))
_MAY_HOLD = (torch.Tensor, dict, list, tuple)


def _tables(layer: nn.Module) -> Iterator[Any]:
    for module in layer.modules():
        own = vars(module)
        yield own
        for value in own.values():
            if isinstance(value, _CONTAINERS):
                yield value


def _differ(one: Any, other: Any) -> bool:
    if len(one) != len(other):
        return True
    if isinstance(one, dict):
        return any(one[key] is not other.get(key, one) for key in one) or list(one) != list(other)
    if isinstance(one, list):
        return any(a is not b for a, b in zip(one, other, strict=True))
    return bool(one != other)


def _fill(table: Any, content: Any) -> None:
    if isinstance(table, list):
        table[:] = content
    else:
        table.clear()
        table.update(content)
