"""A layer with fake tensors in place of all that hangs on it, to foresee what comes of it.

Torch runs an operation on real tensors alone for real, also under a fake mode: counting a batch would
count it, on the caller's stream, beside a launch of the same layer that counts on its own. So what is
asked is a double: the layer's modules, attributes and methods, with fake tensors. The layer itself is
left alone, since another thread may be in it.
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
        fake: what stands for a tensor; the same for the same one.
    """

    def __init__(self, layer: nn.Module, fake: Fake) -> None:
        self._fake = fake
        self._doubles: dict[int, nn.Module] = {}
        self._members = {id(module) for module in layer.modules()}
        self._found: list[tuple[Any, Any]] = []
        self.layer = self._module(layer)
        self._found += [(vars(double), content_of(vars(double))) for double in self._doubles.values()]

    def call(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A method of the layer's, as one of the double's.

        Args:
            forward: the layer's own forward.
        """
        found: Callable[..., Any] = self._value(forward)
        return found

    def changed(self) -> bool:
        """Whether an attribute or a container of the double holds something else than it began with."""
        return any(differ(content_of(table), before) for table, before in self._found)

    @property
    def containers(self) -> list[Any]:
        """The lists and dicts that hang on the double."""
        return [table for table, _ in self._found]

    def clear(self) -> None:
        """The double is over: it lets go of all that it made and keeps, without the garbage collector."""
        for double in self._doubles.values():
            vars(double).clear()

    def _module(self, module: nn.Module) -> nn.Module:
        double = self._doubles.get(id(module))
        if double is None:
            double = self._doubles[id(module)] = object.__new__(type(module))
            own = vars(double)
            for name, value in without_replacement(module).items():  # no layer inside of it launches
                own[name] = self._value(value)
        return double

    def _value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._fake(value)
        if isinstance(value, nn.Module):
            return self._module(value) if id(value) in self._members else value
        if isinstance(value, MethodType) and id(value.__self__) in self._members:
            return MethodType(value.__func__, self._value(value.__self__))
        if isinstance(value, weakref.ref):  # recurrent layers look whether their weights are still the same
            target = value()
            return weakref.ref(self._value(target)) if isinstance(target, torch.Tensor) else value
        if isinstance(value, (list, tuple, dict)):
            return copied(self._value, value, self._found)
        return map_tensors(self._fake, value)


def copied(change: Callable[[Any], Any], value: Any, found: list[tuple[Any, Any]]) -> Any:
    """A value with other things in it.

    Args:
        change: what is put in the place of whatever is no list, tuple or dict.
        value: nested as it is.
        found: gets each list and dict of the copy, and what is in it now.
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
