"""Infer what a layer or a function will return, before it launches: its code runs with fake tensors."""

import weakref
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from baechi.run.foresee.fake_watch import FakeWatch, foreseeing, like, storage_number
from baechi.run.foresee.faked import Double, copied
from baechi.run.state.caller_state import saved_hooks_aside
from baechi.run.state.draws import Draw
from baechi.run.state.meta import Meta
from baechi.torchlib.dynamo import compiler_aside
from baechi.torchlib.fakes.at_work import fakes_at_work
from baechi.torchlib.fakes.leaks import clear_known_caches
from baechi.torchlib.modules.tables import content_of, differ
from baechi.torchlib.private.fakes import FakeTensorMode
from baechi.torchlib.private.modes import (
    function_modes,
    set_function_modes,
    without_subclass_function,
)
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in


@dataclass(frozen=True, slots=True)
class Outcome:
    """The inferred result and side effects of a call.

    Args:
        result: what it returns, with a `Slot` in place of each tensor.
        metas: by slot, the tensor's shape, strides, dtype and device.
        given: by slot, the index of the argument that is returned itself; None for another tensor.
        alias: by slot, the index of an argument that it shares memory with; None if with none.
        memory: by slot, the first slot that it shares memory with; its own if there is no earlier one.
        written: the indexes of arguments that the call writes in place.
        draws: the call's random operations.
    """

    result: Any
    metas: tuple[Meta, ...]
    given: tuple[int | None, ...]
    alias: tuple[int | None, ...]
    memory: tuple[int, ...]
    written: tuple[int, ...]
    draws: tuple[Draw, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """In place of a tensor of a result: its position among the result's tensors."""

    index: int


def infer(
    call: Callable[..., Any],
    args: Any,
    kwargs: Any,
    *,
    layer: nn.Module | None = None,
    device: torch.device | None = None,
) -> Outcome | None:
    """Run a call with fake tensors only. The caller must have switched off all torch modes.

    Args:
        call: a function, or a layer's forward.
        args: positional arguments; tensors may be deferred.
        kwargs: keyword arguments.
        layer: the layer whose forward `call` is; None for a function.
        device: where the arguments will lie when it runs; None: where they lie now.

    Returns:
        The outcome. None if the call cannot wait and must launch now: its result depends on values, or
        holds no tensor, or it touches memory or containers that other code may read at once.
    """
    made: list[weakref.ref[torch.Tensor]] = []
    # Deferred tensors that the call finds must not launch: `without_subclass_function` switches that off.
    with foreseeing(), saved_hooks_aside(), without_subclass_function():
        outcome, returned = _run(call, args, kwargs, made, layer, device)
    if any(reference() is not None for reference in made):
        clear_known_caches()  # a library's cache has kept a fake tensor, which must not meet real ones
    if any(reference() is not None for reference in returned):
        return None  # other code keeps the fake result, and would never get the real one
    return outcome


def _run(
    call: Callable[..., Any],
    args: Any,
    kwargs: Any,
    made: list[Any],
    layer: nn.Module | None,
    device: torch.device | None,
) -> tuple[Outcome | None, list[Any]]:
    """The outcome, and weak references to the fake results; `made` is filled with one to each fake made."""
    watch = FakeWatch(made)
    fakes: dict[int, torch.Tensor] = {}
    cache_was_on = torch.is_autocast_cache_enabled()
    metas = {id(tensor): Meta.of(tensor, device) for tensor in tensors_in(args, kwargs)}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in fakes:
            fakes[id(tensor)] = like(metas[id(tensor)])
        return fakes[id(tensor)]

    found: list[tuple[Any, Any]] = []  # containers among the faked arguments, with their contents
    double: Double | None = None
    with fakes_at_work(), compiler_aside(), FakeTensorMode(allow_non_fake_inputs=True), watch:
        faked_args, faked_kwargs = copied(partial(map_tensors, fake), (args, kwargs), found)
        torch.set_autocast_cache_enabled(False)  # the cache would keep fake casts of real weights
        try:
            double = None if layer is None else Double(layer, watch.fake_of)
            run = call if double is None else double.call(call)
            watch.start(list(fakes.values()))
            result = run(*faked_args, **faked_kwargs)
            if any(differ(content_of(container), before) for container, before in found):
                return None, []  # it changes a container argument, which the code may read at once
            if double is not None and double.changed():
                return None, []  # it sets attributes of the layer, which later code may read at once
            held = [container for container, _ in found] + ([] if double is None else double.containers)
            if _returns_one_of(result, {id(container) for container in held}):
                return None, []  # it returns a container that others hold, not a copy: writes must reach both
            given = {id(tensor) for tensor in fakes.values()}
            returned = [weakref.ref(tensor) for tensor in tensors_in(result) if id(tensor) not in given]
            return _outcome(result, list(fakes.values()), watch), returned
        except Exception:  # no outcome, so the caller runs it for real, where a true error is raised again
            return None, []
        finally:
            torch.set_autocast_cache_enabled(cache_was_on)
            if double is not None:
                double.clear()


def key_of(value: Any) -> Hashable:
    """The part of an argument that decides a call's outcome, as a cache key.

    Raises:
        TypeError: the outcome may depend on more than a key can hold.
    """
    if isinstance(value, torch.Tensor):
        with without_subclass_function():
            if value.layout != torch.strided or value.is_nested:
                raise TypeError(value.layout)
            return Meta.of(value), type(value) is torch.nn.Parameter
    if value is None or isinstance(value, (bool, int, float, str, complex, torch.dtype, torch.device)):
        return type(value), value
    if isinstance(value, (tuple, list)):
        return type(value), tuple([key_of(item) for item in value])
    if isinstance(value, dict):
        return tuple([(key, key_of(item)) for key, item in value.items()])
    if isinstance(value, slice):
        return slice, key_of(value.start), key_of(value.stop), key_of(value.step)
    if value is Ellipsis or isinstance(value, (torch.layout, torch.memory_format)):
        return value
    raise TypeError(type(value).__name__)


def _outcome(result: Any, fakes: list[torch.Tensor], watch: FakeWatch) -> Outcome | None:
    """The outcome of a call that returned a fake result; None if the call cannot wait."""
    metas: list[Meta] = []
    given: list[int | None] = []
    alias: list[int | None] = []
    memory: list[int] = []
    first: dict[int, int] = {}
    index_of = {id(tensor): index for index, tensor in enumerate(fakes)}

    def slot(tensor: torch.Tensor) -> Any:
        metas.append(Meta.of(tensor))
        given.append(index_of.get(id(tensor)))
        alias.append(watch.given.get(storage_number(tensor)))
        memory.append(first.setdefault(storage_number(tensor), len(memory)))
        return Slot(len(metas) - 1)

    template = _map_all(slot, result)
    if not metas or template is None:
        return None
    results = [tensor for tensor in tensors_in(result) if storage_number(tensor) not in watch.given]
    if any(storage_number(tensor) not in watch.made for tensor in results):
        return None  # it returns memory that it did not make: a buffer, say, which others read and write
    written = tuple(sorted(watch.written))
    by_slot = tuple(given), tuple(alias), tuple(memory)
    return Outcome(template, tuple(metas), *by_slot, written, tuple(watch.draws))


def _returns_one_of(value: Any, held: set[int]) -> bool:
    """Whether a result contains one of the containers with these ids."""
    if id(value) in held:
        return True
    if isinstance(value, Mapping):
        return any(_returns_one_of(item, held) for item in value.values())
    return isinstance(value, (list, tuple)) and any(_returns_one_of(item, held) for item in value)


def _map_all(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The value with slots in place of tensors; None if it holds anything that cannot be inferred.

    That is: numbers (a fake run does not know values), tensors that are not dense, and containers with
    tensors other than lists, tuples and dicts.
    """
    if isinstance(value, torch.Tensor):
        return change(value) if value.layout == torch.strided and not value.is_nested else None
    if isinstance(value, (list, tuple)):
        items = [_map_all(change, item) for item in value]
        if any(item is None and old is not None for item, old in zip(items, value, strict=True)):
            return None
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        pairs = {key: _map_all(change, item) for key, item in value.items()}
        if any(item is None and value[key] is not None for key, item in pairs.items()):
            return None
        return pairs if type(value) is dict else None
    return None if isinstance(value, (bool, int, float, complex)) or _holds_tensors(value) else value


def _holds_tensors(value: Any) -> bool:
    return next(tensors_in(value), None) is not None


class _NoFunctionModes:
    __slots__ = ("_modes",)

    def __enter__(self) -> None:
        self._modes = function_modes()
        set_function_modes(())

    def __exit__(self, *exception: object) -> None:
        set_function_modes(self._modes)


def no_function_modes() -> AbstractContextManager[None]:
    """Within this context, no function mode is on: operations of ours are no functional ops of the model."""
    return _NoFunctionModes()
