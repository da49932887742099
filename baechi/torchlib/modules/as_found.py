"""The model as it was found: noted before a capture or a measurement, put back after."""

import random
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from baechi.torchlib.modules.tables import (
    SMALL_BYTES,
    content_of,
    has_changed,
    items_of,
    members_of,
    numbers_of,
    refill,
    tables_of,
)
from baechi.torchlib.private.transforms import is_wrapped
from baechi.torchlib.process_settings import process_settings, set_process_settings
from baechi.torchlib.random_state import random_state_kept
from baechi.torchlib.tensors.swap_memory import exchange

Contents = Literal["all", "no parameters", "none"]

_NOT_STATE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    partial,
    weakref.ProxyType,
    weakref.CallableProxyType,
)


@contextmanager
def left_as_found(model: nn.Module, *, contents: Contents) -> Iterator["Keeper"]:
    """Put everything back that running the model may change, also after an exception.

    Everything reachable from the model's modules: attributes, registered tables,
    containers, plain objects, small arrays; which memory each tensor has, and what is in it; gradients;
    the states of random generators, and settings of the process.
    """
    keeper = Keeper(contents)
    for module in model.modules():
        keeper.keep(module)
    settings = process_settings()
    with random_state_kept():
        try:
            yield keeper
        finally:
            set_process_settings(settings)
            keeper.put_back()


class Keeper:
    """What was found, as a list of ways to put it back."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.undo: list[Callable[[], object]] = []
        self.containers: list[tuple[Any, Any]] = []
        self.seen: dict[int, Any] = {}

    def keep(self, value: Any) -> None:
        """Note a value and everything reachable from it."""
        waiting = [value]
        while waiting:
            item = waiting.pop()
            # by the type itself: a proxy answers `__class__` by code of its own, which may raise
            if id(item) not in self.seen and not _is_ours(item) and not issubclass(type(item), _NOT_STATE):
                self.seen[id(item)] = item
                waiting.extend(self._note(item))

    def changed(self) -> bool:
        """Whether an attribute or a container holds something else than was found in it."""
        return any(has_changed(table, before) for table, before in self.containers)

    def put_back(self) -> None:
        """Put everything back, what was noted last first."""
        with torch.no_grad():
            for undo in reversed(self.undo):
                undo()

    def _note(self, item: Any) -> list[Any]:
        """Note one object; returns what it refers to."""
        kind = type(item)
        if issubclass(kind, torch.Tensor):
            self._note_tensor(item)
            return []
        if issubclass(kind, (tuple, frozenset)):
            return members_of(item)
        if issubclass(kind, random.Random):
            if issubclass(kind, random.SystemRandom):  # it has no state
                return []
            state = item.getstate()
            self.undo.append(lambda: item.setstate(state))
            return []
        if issubclass(kind, torch.Generator):
            self.undo.append(partial(item.set_state, item.get_state()))
            return []
        numbers = numbers_of(item)
        if numbers is not None:
            if numbers.size_bytes <= SMALL_BYTES:
                self.undo.append(partial(_put_back, numbers, content_of(numbers)))
            return []
        if "numpy" in sys.modules and issubclass(kind, sys.modules["numpy"].random.Generator):
            numpy_state = item.bit_generator.state
            self.undo.append(lambda: setattr(item.bit_generator, "state", numpy_state))
            return []
        return [inside for table in tables_of(item) for inside in self._note_table(table)]

    def _note_table(self, table: Any) -> list[Any]:
        before = content_of(table)
        self.containers.append((table, before))
        self.undo.append(lambda: _put_back(table, before))
        return list(items_of(before))

    def _note_tensor(self, tensor: torch.Tensor) -> None:
        if is_wrapped(tensor):
            return
        data, grad = tensor.data, tensor.grad if tensor.is_leaf else None
        parameter = isinstance(tensor, nn.Parameter)
        written = not tensor.is_meta and tensor.layout == torch.strided
        kept = self.contents == "all" or (self.contents == "no parameters" and not parameter)
        content = data.clone() if written and kept else None

        def undo() -> None:
            if tensor.data.untyped_storage() is not data.untyped_storage():
                exchange(tensor, data)
            if content is not None and not torch.equal(data, content):
                data.copy_(content)
            if tensor.is_leaf and tensor.grad is not grad:
                tensor.grad = grad

        if tensor.layout == torch.strided:
            self.undo.append(undo)


def _is_ours(item: Any) -> bool:
    """Whether it is of our runtime, which is no state of the model. (The zoo's models are modules.)"""
    return type(item).__module__.startswith("baechi.") and not issubclass(type(item), nn.Module)


def _put_back(table: Any, before: Any) -> None:
    if has_changed(table, before):
        refill(table, before)
