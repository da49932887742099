"""A copy of a layer that holds fake tensors, to infer what the layer returns.

Torch runs an operation whose inputs are all real for real, even under a fake mode. A layer's batch
counter would advance, on the caller's stream, while another launch of the layer advances it too. So the
inference runs a double: the layer's modules, attributes and methods, with fake tensors. The layer itself
is not changed, since another thread may be running it.
"""

import copy
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn

from baechi.torchlib.modules.intercept import without_replacement
from baechi.torchlib.modules.tables import content_of, differ
from baechi.torchlib.tensors.pytree import map_tensors

Fake = Callable[[torch.Tensor], torch.Tensor]


class Double:
    """The double of a layer.

    Args:
        layer: the layer.
        fake: returns the fake of a tensor, the same one each time.
    """

    def __init__(self, layer: nn.Module, fake: Fake) -> None:
        self._fake = fake
        self._doubles: dict[int, nn.Module] = {}
        self._members = {id(module) for module in layer.modules()}
        self._found: list[tuple[Any, Any]] = []
        self.layer = self._module(layer)
        self._found += [(vars(double), content_of(vars(double))) for double in self._doubles.values()]

    def call(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Bind a method of the layer to the double.

        Args:
            forward: the layer's own forward.
        """
        found: Callable[..., Any] = self._value(forward)
        return found

    def changed(self) -> bool:
        """Whether an attribute or a container of the double has changed since it was made."""
        return any(differ(content_of(table), before) for table, before in self._found)

    @property
    def containers(self) -> list[Any]:
        """The lists and dicts that the double holds."""
        return [table for table, _ in self._found]

    def clear(self) -> None:
        """Release all that the double made and holds, so that the garbage collector is not needed."""
        for double in self._doubles.values():
            vars(double).clear()

    def _module(self, module: nn.Module) -> nn.Module:
        double = self._doubles.get(id(module))
        if double is None:
            double = self._doubles[id(module)] = object.__new__(type(module))
            own = vars(double)
            for name, value in without_replacement(module).items():  # unwrapped: no layer launches
                own[name] = self._value(value)
        return double

    def _value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._fake(value)
        if isinstance(value, nn.Module):
            return self._module(value) if id(value) in self._members else value
        if isinstance(value, MethodType) and id(value.__self__) in self._members:
            return MethodType(value.__func__, self._value(value.__self__))
        if isinstance(value, weakref.ref):  # recurrent layers compare weak references to their weights
            target = value()
            return weakref.ref(self._value(target)) if isinstance(target, torch.Tensor) else value
        if isinstance(value, (list, tuple, dict)):
            return copied(self._value, value, self._found)
        return map_tensors(self._fake, value)


def copied(change: Callable[[Any], Any], value: Any, found: list[tuple[Any, Any]]) -> Any:
    """Copy nested lists, tuples and dicts, with every leaf replaced.

    Args:
        change: returns the replacement of a leaf: a value that is no list, tuple or dict.
        value: the nested value.
        found: is filled with each list and dict of the copy, and its contents now.
    """
    if isinstance(value, tuple):
        items = [copied(change, item, found) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if not isinstance(value, (list, dict)):
        return change(value)
    made = copy.copy(value)
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        made[key] = copied(change, value[key], found)
    found.append((made, content_of(made)))
    return made
