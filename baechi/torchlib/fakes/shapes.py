"""What an operator returns, by its arguments' shapes alone: inferred once with fake tensors, then remembered.

Fake tensors say that they lie on the CPU, so composite operators take the path that they take there. (On
`meta`, attention and recurrent layers take other paths, and keep other tensors for backward.)
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from baechi.torchlib.fakes.results import as_its_kernel, with_kept_strides
from baechi.torchlib.private.fakes import FakeTensorMode
from baechi.torchlib.private.modes import without_dispatch_modes
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

_CHEAP = 1 << 20
"""Elements: with more of them a kernel does not run to show what it returns."""


@dataclass(frozen=True, slots=True)
class Made:
    """A new tensor.

    Args:
        size, stride, dtype: as of the tensor.
        storage_bytes: how large its memory is.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    storage_bytes: int


@dataclass(frozen=True, slots=True)
class Given:
    """One of the arguments.

    Args:
        index: which of the tensors among them.
    """

    index: int


@dataclass(frozen=True, slots=True)
class Views:
    """Results in the memory of arguments, though the operator's schema says nothing of it."""


class Shapes:
    """A memory of results of operators."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def result_of(self, func: Any, args: Any, kwargs: dict[str, Any], given: list[torch.Tensor]) -> Any:
        """The result of an operator.

        Args:
            func: the operator.
            args: its positional arguments.
            kwargs: its keyword arguments.
            given: the tensors among them.

        Returns:
            What it returns, with `Made` and `Given` in place of tensors; `Views` if they are views.

        Raises:
            RuntimeError: it does not take such arguments, or says nothing of its result.
        """
        try:
            key = (func, _key_of(args), _key_of(kwargs), torch.is_inference_mode_enabled())
            hash(key)
        except TypeError:
            return _inferred(func, args, kwargs, given)
        if key not in self._known:
            self._known[key] = _inferred(func, args, kwargs, given)
        return self._known[key]


def on_zeros(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of the real kernel for arguments of these shapes.

    Args:
        func: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """

    def zeros(tensor: torch.Tensor) -> torch.Tensor:
        memory = torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.uint8).view(tensor.dtype)
        return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    with without_dispatch_modes():
        args, kwargs = map_tensors(zeros, (args, kwargs))
        return func(*args, **kwargs)


def is_cheap(given: list[torch.Tensor]) -> bool:
    """Whether a kernel may run on such tensors for nothing but what that shows.

    Args:
        given: its arguments.
    """
    return sum([tensor.numel() for tensor in given]) <= _CHEAP


def _key_of(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.layout
    if isinstance(value, (list, tuple)):
        return tuple([_key_of(item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _key_of(item)) for name, item in value.items()])
    return type(value), value


def _inferred(func: Any, args: Any, kwargs: dict[str, Any], given: list[torch.Tensor]) -> Any:
    fakes: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in fakes:
            fakes[id(tensor)] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return fakes[id(tensor)]

    with without_dispatch_modes(), FakeTensorMode():
        faked_args, faked_kwargs = map_tensors(fake, (args, kwargs))
        try:
            result = as_its_kernel(func, faked_args, faked_kwargs, func(*faked_args, **faked_kwargs))
            result = with_kept_strides(func, faked_args, result)
        except RuntimeError:
            if not is_cheap(given):
                raise
            try:  # a shape function may refuse what the kernel takes (a dtype), or not exist
                return _described(on_zeros(func, args, kwargs), {})
            except RuntimeError:
                pass
            raise
    numbers = {id(fakes[id(tensor)]): index for index, tensor in enumerate(given)}
    memory = {fake.untyped_storage() for fake in fakes.values()}
    if any(id(t) not in numbers and t.untyped_storage() in memory for t in tensors_in(result)):
        return Views()
    return _described(result, numbers)


def _described(result: Any, given: dict[int, int]) -> Any:
    """A result with `Made` and `Given` in place of tensors."""
    if any(tensor.layout != torch.strided or tensor.is_nested for tensor in tensors_in(result)):
        raise RuntimeError("its result is no dense tensor")

    def described(tensor: torch.Tensor) -> Any:
        if id(tensor) in given:
            return Given(given[id(tensor)])
        return Made(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.untyped_storage().nbytes())

    return map_tensors(described, result)
