"""Operators run as shape functions: results have sizes, strides and memory, but no values.

    fake tensors ──▶ operator ──▶ fake tensors            nothing is computed
    real tensors ──▶ operator ──▶ real tensors            small ones: masks, positions, lengths
    mixed        ──▶ operator ──▶ fake tensors

Fake tensors say that they lie on the CPU, so composite operators take the path that they take there. (On
`meta`, attention and recurrent layers take other paths, and keep other tensors for backward.)

Small integer inputs stay real, and so does what follows from them alone. So a model that decides by its
inputs gets an answer (`if mask.all()`); one that decides by activations gets an error.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch

from baechi.torchlib.fakes.results import as_its_kernel
from baechi.torchlib.operators.facts import draws, facts_of, flat, writes_of
from baechi.torchlib.private.fakes import FakeTensor, FakeTensorMode
from baechi.torchlib.private.modes import without_dispatch_modes
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in
from baechi.torchlib.tensors.storage import storage_object

_MOST = 1 << 20
"""Results with more elements are not computed."""

_CPU = torch.device("cpu")


class ShapeKernels:
    """Runs operators without computing anything that is large, or follows from weights.

    Attributes:
        mode: the mode of the fake tensors.
    """

    def __init__(self) -> None:
        self.mode = _Mode(self)
        self._unknown: WeakSet[Any] = WeakSet()  # storages of real tensors that were written with fake ones
        self._lock = threading.RLock()
        self._inside = 0

    @property
    def running(self) -> bool:
        """Whether torch is inside of an operator, and asks fake tensors for their own device."""
        return self._inside > 0

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator.

        Args:
            func: the operator.
            args: its positional arguments.
            kwargs: its keyword arguments.

        Returns:
            What it returns: real tensors where its inputs are real and its results small, else fake ones.

        Raises:
            RuntimeError: the result depends on values that are not known; torch's own errors for it.
        """
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _CPU}
        facts = facts_of(func)
        given = flat((*args, *kwargs.values()))
        if all(map(self._is_known, given)) and self._is_small(func, facts, args, kwargs):
            return func(*args, **kwargs)
        written = [tensor for tensor in writes_of(facts, args, kwargs) if type(tensor) is not FakeTensor]
        self._unknown.update(storage_object(tensor) for tensor in written)
        masks = facts.rule.masks
        if masks is not None:
            args = (*args[:masks], self._without_masks(args[masks]), *args[masks + 1 :])
        if draws(func, args, kwargs) and _is_cheap((args, kwargs)):
            _on_zeros(func, args, kwargs)  # moves the generator on: code that draws a number takes its path
        with self.mode:
            result = self._shaped(func, args, kwargs)
        return written[0] if written and facts.returns_written else result

    def _without_masks(self, indices: Any) -> list[Any]:
        """Indices with whole numbers for masks that are known, which say how much is taken."""
        found: list[Any] = []
        for index in indices:
            masks = isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            found.extend(index.nonzero(as_tuple=True) if masks and self._is_known(index) else (index,))
        return found

    def _shaped(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        try:
            return as_its_kernel(func, args, kwargs, func(*args, **kwargs))
        except RuntimeError:
            if depends_on_values(func) or not _is_cheap((args, kwargs)):
                raise
            try:  # a shape function may refuse what the kernel takes (a dtype), or not exist
                return map_tensors(self.mode.from_tensor, _on_zeros(func, args, kwargs))
            except RuntimeError:
                pass
            raise

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within this context torch's own code asks fake tensors where they lie."""
        with self._lock:
            self._inside += 1
            try:
                yield
            finally:
                self._inside -= 1

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return type(tensor) is not FakeTensor and storage_object(tensor) not in self._unknown

    def _is_small(self, func: Any, facts: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether an operator on real tensors makes small ones only."""
        if facts.aliases or facts.writes or depends_on_values(func):
            return True
        with self.mode:
            made = flat((func(*args, **kwargs),))
        return all(tensor.numel() <= _MOST for tensor in made)


def is_decided_by(tensor: torch.Tensor) -> bool:
    """Whether a tensor keeps its values in a dry run, since models may decide by them.

    Args:
        tensor: a weight or an input.
    """
    plain = tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_meta
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized)
    return plain and whole and tensor.numel() <= _MOST


def depends_on_values(func: Any) -> bool:
    """Whether an operator's result is a number, or has a shape, that depends on values.

    Args:
        func: the operator.
    """
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def _is_cheap(given: Any) -> bool:
    return sum([tensor.numel() for tensor in tensors_in(given)]) <= _MOST


def _on_zeros(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of the real kernel for arguments of these shapes."""

    def zeros(tensor: torch.Tensor) -> torch.Tensor:
        memory = torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.uint8).view(tensor.dtype)
        return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    with without_dispatch_modes():
        args, kwargs = map_tensors(zeros, (args, kwargs))
        return func(*args, **kwargs)


class _Mode(FakeTensorMode):
    """A mode of fake tensors that says while torch runs an operator on them."""

    def __init__(self, kernels: ShapeKernels) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._kernels = kernels

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self._kernels.inside():
            # the cache of results would keep a storage among the arguments, and its memory, for good
            self.cache_enabled = not any(isinstance(value, torch.UntypedStorage) for value in args)
            return super().dispatch(func, types, args, kwargs)
