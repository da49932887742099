"""Tensors inside nested values: arguments and outputs as models really pass them."""

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from baechi.torchlib.private.tensors import REGISTERED_CONTAINERS

TensorMap = Callable[[torch.Tensor], torch.Tensor]
Copied = Callable[[Any, Any], None]
Found = Callable[[Any], None]

_NONE: Mapping[int, Any] = {}
PLAIN = (int, float, str, bytes, complex, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""What holds no tensors."""

_NO_CONTAINERS = frozenset({type(None), bool, *PLAIN})


def map_tensors(
    change: TensorMap,
    value: Any,
    copied: Copied | None = None,
    other: Found | None = None,
    known: Mapping[int, Any] = _NONE,
) -> Any:
    """Apply a function to every tensor in a value, and keep everything else as it is.

    Looks into lists, tuples, named tuples, mappings (Hugging Face's outputs and encodings are
    some), dataclasses and types registered with `torch.utils._pytree`. Other objects, such as
    key-value caches and sets, are handed on untouched.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in _NO_CONTAINERS or isinstance(value, PLAIN):
        return value
    if id(value) in known:
        return known[id(value)]
    again = partial(map_tensors, change, copied=copied, other=other, known=known)
    result = _map_container(again, value)
    if result is value and other is not None and not _is_container(value):
        other(value)
    if copied is not None and result is not value:
        copied(value, result)
    return result


def _map_container(again: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return _map_sequence(again, value)
    if isinstance(value, Mapping):
        return _map_mapping(again, value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _map_dataclass(again, value)
    if type(value) in REGISTERED_CONTAINERS:
        return _map_registered(again, value)
    return value


def _is_container(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple, Mapping))
        or dataclasses.is_dataclass(value)
        or type(value) in REGISTERED_CONTAINERS
    )


def tensors_in(*values: Any) -> Iterator[torch.Tensor]:
    """Every tensor in the values, in order; see `map_tensors` for where it looks."""
    found: list[torch.Tensor] = []
    for value in values:
        kind = type(value)  # to ask first what it is not takes five times as long
        if kind is torch.Tensor:
            found.append(value)
        elif kind is tuple or kind is list:
            found += tensors_in(*value)
        elif kind is dict:
            found += tensors_in(*value.values())
        elif kind not in _NO_CONTAINERS:
            if isinstance(value, torch.Tensor):
                found.append(value)
            elif not isinstance(value, PLAIN):  # no common container
                map_tensors(partial(_note, found), value)
    return iter(found)


def _note(found: list[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    found.append(tensor)
    return tensor


def named_tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in a value with the path that leads to it."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tensors(f"{name}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from named_tensors(f"{name}.{index}", item)
    else:
        for index, tensor in enumerate(tensors_in(value)):
            yield f"{name}.{index}", tensor


def _map_sequence(again: Callable[[Any], Any], value: list[Any] | tuple[Any, ...]) -> Any:
    # by the base type: of a subclass, which may be no row of values at all, `__iter__` or `__len__` may raise
    old = list.__getitem__(value, slice(None)) if isinstance(value, list) else list(tuple.__iter__(value))
    items = [again(item) for item in old]
    if all(one is other for one, other in zip(items, old, strict=True)):
        return value
    if isinstance(value, PackedSequence):  # its batch sizes belong to the host, wherever its data lies
        items[1] = old[1]
    if hasattr(value, "_fields"):  # a named tuple takes its items one by one
        return type(value)(*items)
    return type(value)(items)


def _map_mapping(again: Callable[[Any], Any], value: Mapping[Any, Any]) -> Any:
    if isinstance(value, dict):  # by the base type, too; an OrderedDict has its own record of the order
        pairs = list((OrderedDict if isinstance(value, OrderedDict) else dict).items(value))
    else:
        pairs = list(value.items())
    items = {key: again(item) for key, item in pairs}
    changed = {key: items[key] for key, item in pairs if items[key] is not item}
    if not changed:
        return value
    if not isinstance(value, MutableMapping):
        return items
    result = copy.copy(value)
    for key, item in changed.items():
        result[key] = item
    return result


def _map_dataclass(again: Callable[[Any], Any], value: Any) -> Any:
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    items = {name: again(getattr(value, name)) for name in names}
    changed = {name: item for name, item in items.items() if item is not getattr(value, name)}
    if not changed:
        return value
    result = copy.copy(value)
    for name, item in changed.items():
        object.__setattr__(result, name, item)  # frozen ones too
    return result


def _map_registered(again: Callable[[Any], Any], value: Any) -> Any:
    node = REGISTERED_CONTAINERS[type(value)]
    children, context = node.flatten_fn(value)
    items = [again(child) for child in children]
    if all(new is old for new, old in zip(items, children, strict=True)):
        return value
    return node.unflatten_fn(items, context)
