"""The containers and tensors that a call can reach, as they were when the code reached the call.

    code     items = [x];  b = layer(items)   <- reached: the contents are noted;   items.append(b)
    later    the layer launches               <- items is [x] again while the layer runs

A layer that waits must compute with the contents that its arguments and attributes had when the code
reached it. Tensors stay the same objects. Containers are refilled with their earlier contents while the
layer runs. (A copy of a container would fail `is`, and may be of another type.)
"""

import functools
import gc
import sys
import types
from collections.abc import Hashable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from typing import Any

import torch

from baechi.errors import BaechiError
from baechi.run.state.meta import Meta
from baechi.torchlib.modules.tables import content_of, differ, items_of, members_of, refill, tables_of
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.private.operators import MACHINERY

_PLAIN = frozenset(
    {
        bool, int, float, complex, str, bytes, range, type(None), type(Ellipsis), torch.dtype,
        torch.device, torch.layout, torch.memory_format, torch.Size,
    }
)  # fmt: skip
"""Immutable types that hold no tensors."""

_VIEWS = (KeysView, ValuesView, ItemsView, types.MappingProxyType)
_CLOSED = (type, types.ModuleType, types.BuiltinFunctionType, torch.Generator)
_CLOSED_MODULES = (*MACHINERY, "baechi.")
_STANDARD = frozenset(sys.stdlib_module_names) - {"builtins", "collections", "functools", "types"}


class Contents:
    """The containers (lists, dicts, attributes) that some values reach, and the tensors in them.

    Args:
        *values: a layer, or arguments, searched to any depth.
    """

    given: list[torch.Tensor] | None = None
    """The tensors among the arguments, where these are plain, and no other one is deferred."""

    def __init__(self, *values: Any) -> None:
        self.tensors: list[torch.Tensor] = []
        """All tensors, in arguments too."""
        self.unseen = False
        """Whether an iterator was found, whose contents cannot be read without using it up."""
        self.found: list[tuple[Any, Any]] = []
        """The containers, and what was in them."""
        self._tokens: list[Hashable] = []
        seen: dict[int, Any] = {}
        waiting = list(reversed(values))
        while waiting:
            item = waiting.pop()
            kind = type(item)
            if kind in _PLAIN:
                self._tokens.append(item)
            elif id(item) not in seen:
                seen[id(item)] = item
                waiting += self._look_into(item, kind)

    @property
    def state(self) -> Hashable:
        """A key of all that a call's outcome may depend on, except the values in tensors."""
        return tuple(self._tokens)

    @contextmanager
    def restored(self, name: str) -> Iterator[None]:
        """Within this context, the containers have the contents that were noted.

        Args:
            name: the layer or function that runs inside.

        Raises:
            BaechiError: it changed a container, which the inference with fake tensors did not.
        """
        now = [(table, content_of(table)) for table, _ in self.found]
        for (table, found), (_, present) in zip(self.found, now, strict=True):
            if differ(present, found):
                refill(table, found)
        try:
            yield
            if any(differ(content_of(table), found) for table, found in self.found):
                raise changed_at_launch(name)
        finally:
            for (table, found), (_, present) in zip(self.found, now, strict=True):
                if differ(present, found):
                    refill(table, present)

    def _look_into(self, item: Any, kind: Any) -> Iterable[Any]:
        """Note one object; returns the objects that it refers to."""
        if issubclass(kind, torch.Tensor):
            self.tensors.append(item)
            self._tokens.append(look_of(item))
            return ()
        self._tokens.append(kind)
        if issubclass(kind, (tuple, frozenset)):
            return members_of(item)
        if issubclass(kind, _VIEWS):  # a view of a dict refers to that dict only
            return gc.get_referents(item)
        if issubclass(kind, types.FunctionType):
            return (*(item.__closure__ or ()), item.__defaults__, item.__kwdefaults__)
        if issubclass(kind, types.MethodType):
            return item.__self__, item.__func__
        if issubclass(kind, functools.partial):
            return item.func, item.args, item.keywords
        if issubclass(kind, slice):
            return item.start, item.stop, item.step
        if _is_closed(kind) or issubclass(kind, _CLOSED):
            return ()
        self.unseen |= issubclass(kind, Iterator)
        return self._note(item)

    def _note(self, item: Any) -> list[Any]:
        inside: list[Any] = []
        for table in tables_of(item):
            content = content_of(table)
            self.found.append((table, content))
            self._tokens.append(_names_in(content))
            inside += items_of(content)
        return inside


def look_of(tensor: torch.Tensor) -> Hashable:
    """What a call's outcome may depend on of a tensor: all but its values.

    Args:
        tensor: any tensor.
    """
    kind = type(tensor)
    if kind is torch.nn.Parameter:
        return tensor.requires_grad, tensor.shape, tensor.dtype
    if kind is torch.Tensor:
        return _look_of_value(tensor)
    with without_subclass_function():
        if isinstance(tensor, torch.nn.Parameter):
            return tensor.requires_grad, tensor.shape, tensor.dtype
        return _look_of_value(tensor)


def _look_of_value(tensor: torch.Tensor) -> Hashable:
    if tensor.layout != torch.strided or tensor.is_nested:
        return tensor.layout, tensor.dtype
    return Meta.of(tensor)


def changed_at_launch(name: str) -> BaechiError:
    """The error for a layer or function that changes containers at launch, and did not when it was inferred.

    Args:
        name: the layer or function.
    """
    return BaechiError(
        f"{name} changed a list, a dict or an attribute when it launched, which it did not do "
        "before with the same arguments. Run this model with reorder=False"
    )


def _names_in(content: Any) -> Hashable:
    if not isinstance(content, dict):
        return len(content)
    return tuple([key if type(key) in (str, int) else type(key) for key in content])


@functools.cache
def _is_closed(kind: type) -> bool:
    """Whether objects of a class are not searched, since they hold no tensors: locks, loggers, graphs."""
    module = str(kind.__module__)
    return module.partition(".")[0] in _STANDARD or module.startswith(_CLOSED_MODULES)
