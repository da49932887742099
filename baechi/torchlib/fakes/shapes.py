"""What an operator returns, by its arguments' shapes alone: inferred once with fake tensors, then remembered.

The fake tensors report the device `cpu`. So operators that call different kernels by device call those of the
CPU. (On `meta`, attention and recurrent layers call others, which keep other tensors for backward.)
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from baechi.torchlib.fakes.results import as_its_kernel, with_kept_strides
from baechi.torchlib.private.fakes import FakeTensorMode
from baechi.torchlib.private.modes import without_dispatch_modes
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

_MAX_TRIAL_ELEMENTS = 1 << 20
"""Maximum elements of all arguments for which a real kernel runs only to show what it returns."""


@dataclass(frozen=True, slots=True)
class Made:
    """In place of a result: a new tensor.

    Args:
        size, stride, dtype: those of the tensor.
        storage_bytes: the size of its storage, which may be more than the tensor shows.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    storage_bytes: int


@dataclass(frozen=True, slots=True)
class Given:
    """In place of a result: a tensor argument that is returned itself.

    Args:
        index: its position among the tensors of the arguments.
    """

    index: int


@dataclass(frozen=True, slots=True)
class Views:
    """In place of all results: some are views of arguments, though the operator's schema does not say so.

    The caller runs the operator itself then: views read and write no values.
    """


_KEPT = 8192
"""Results that are remembered; beyond, all are forgotten, so that memory does not grow with shapes."""

_UNKNOWN = object()

_known: dict[Hashable, Any] = {}
"""Results by operator and arguments' shapes, for the whole process: dry runs of a model ask for the same."""


class Shapes:
    """Infers what operators return, and remembers it by operator and arguments' shapes."""

    def result_of(self, func: Any, args: Any, kwargs: dict[str, Any], given: list[torch.Tensor]) -> Any:
        """The result of an operator."""
        try:
            settings = torch.is_inference_mode_enabled(), torch.get_default_dtype()
            key = (func, _key_of(args), _key_of(kwargs), settings)
            hash(key)
        except TypeError:  # an argument that has no hash: nothing is remembered
            return _inferred(func, args, kwargs, given)
        found = _known.get(key, _UNKNOWN)  # asked once: another thread may forget it right after
        if found is _UNKNOWN:
            found = _inferred(func, args, kwargs, given)
            if len(_known) >= _KEPT:
                _known.clear()
            _known[key] = found
        return found


def on_zeros(func: Any, args: Any, kwargs: dict[str, Any], known: Sequence[torch.Tensor] = ()) -> Any:
    """Run the real kernel on zeros of the arguments' shapes."""

    def zeros(tensor: torch.Tensor) -> torch.Tensor:
        if any(tensor is one for one in known):
            return tensor
        memory = torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.uint8).view(tensor.dtype)
        return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    with without_dispatch_modes():
        args, kwargs = map_tensors(zeros, (args, kwargs))
        return func(*args, **kwargs)


def sized_by_values(func: Any, args: Any, kwargs: dict[str, Any], deciding: Sequence[torch.Tensor]) -> Any:
    """What an operator returns whose results' shapes follow from the values of some arguments."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if any(tensor is one for one in deciding):
            return tensor
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    with without_dispatch_modes():
        meta_args, meta_kwargs = map_tensors(moved, (args, kwargs))
        try:
            made = func(*meta_args, **meta_kwargs)
        except NotImplementedError:  # there is no such kernel for `meta`
            return _described(on_zeros(func, args, kwargs, deciding), {})
    return map_tensors(lambda tensor: _as_made(tensor) if tensor.is_meta else tensor, made)


def is_cheap(given: list[torch.Tensor]) -> bool:
    """Whether arguments are small enough to run a kernel only to show what it returns or draws."""
    return sum([tensor.numel() for tensor in given]) <= _MAX_TRIAL_ELEMENTS


def _key_of(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.layout
    if isinstance(value, (list, tuple)):
        return tuple([_key_of(item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _key_of(item)) for name, item in value.items()])
    return type(value), value


def _inferred(func: Any, args: Any, kwargs: dict[str, Any], given: list[torch.Tensor]) -> Any:
    """See `Shapes.result_of`."""
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
            raise  # the shape function's own error
    positions = {id(fakes[id(tensor)]): index for index, tensor in enumerate(given)}
    given_storages = {fake.untyped_storage() for fake in fakes.values()}
    if any(id(t) not in positions and t.untyped_storage() in given_storages for t in tensors_in(result)):
        return Views()
    return _described(result, positions)


def _described(result: Any, positions: dict[int, int]) -> Any:
    """A result with `Made` and `Given` in place of tensors."""
    if any(tensor.layout != torch.strided or tensor.is_nested for tensor in tensors_in(result)):
        raise RuntimeError("its result is no dense tensor")

    def described(tensor: torch.Tensor) -> Any:
        if id(tensor) in positions:
            return Given(positions[id(tensor)])
        return _as_made(tensor)

    return map_tensors(described, result)


def _as_made(tensor: torch.Tensor) -> Any:
    return Made(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.untyped_storage().nbytes())
