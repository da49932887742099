"""Operators that compute nothing: their results have the right shape, in memory that nothing touches.

    no values ──▶ operator ──▶ no values                 only its shapes are inferred
    values    ──▶ operator ──▶ values                    small ones: masks, positions, lengths
    mixed     ──▶ operator ──▶ no values

Such tensors are ordinary ones of the CPU, so autograd, views and modules treat them as in any run. But no
kernel writes their memory, so the system never gives them any: a model of a terabyte takes address space.

Small integer inputs keep their values, and so does what follows from them alone. So a model that decides by
its inputs gets an answer (`if mask.all()`); one that decides by activations gets an error.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import isinf
from typing import Any

import torch
import torch.utils.deterministic

from baechi.torchlib.fakes.shapes import Given, Made, Shapes, Views, is_cheap, on_zeros
from baechi.torchlib.operators.facts import Facts, draws, facts_of, flat, writes_of
from baechi.torchlib.private.modes import without_dispatch_modes
from baechi.torchlib.tensors.blank_memory import blank_tensors
from baechi.torchlib.tensors.layout import copy_with_layout, over
from baechi.torchlib.tensors.storage import storage_object

_CPU = torch.device("cpu")
_VALUELESS = "_baechi_valueless"

_MOST = 1 << 20
"""Results with more elements are not computed."""


_FINITE = {"isfinite": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}


class ValuesNeeded(RuntimeError):
    """An operator's result, or the code, depends on values that there are not."""


class ShapeKernels:
    """Runs operators without computing anything that is large, or that follows from weights."""

    def __init__(self) -> None:
        self._shapes = Shapes()

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator.

        Args:
            func: the operator.
            args: its positional arguments.
            kwargs: its keyword arguments.

        Returns:
            What it returns.

        Raises:
            ValuesNeeded: the result depends on values that there are not.
            RuntimeError: torch's own errors for these shapes.
        """
        facts = facts_of(func)
        if facts.aliases or facts.rule.new_memory or facts.rule.resizes:  # they touch no memory
            return func(*args, **kwargs)
        given = flat((*args, *kwargs.values()))
        if not any(map(is_valueless, given)) and self._is_small(func, facts, (args, kwargs), given):
            return func(*args, **kwargs)
        supposed = _supposed(facts.name, given, args)
        if supposed is not None:
            return supposed
        args = _without_masks(func, facts, args)
        if draws(func, args, kwargs) and is_cheap(given):
            on_zeros(func, args, kwargs)  # moves the generator on: code that draws a number takes its path
        written = list(writes_of(facts, args, kwargs))
        for tensor in written:
            forget_values(tensor)
        if facts.returns_written and written:
            return written[0] if len(written) == 1 else tuple(written)
        given = flat((*args, *kwargs.values()))
        described = self._shapes.result_of(func, args, kwargs, given)
        return func(*args, **kwargs) if isinstance(described, Views) else _made(described, given)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of its own with the same layout; values are copied where there are any.

        Args:
            tensor: any tensor.
        """
        if not is_valueless(tensor):
            return copy_with_layout(tensor, _CPU)
        copied = copy_with_layout(tensor, _CPU, filled=False)
        forget_values(copied)
        return copied

    def _is_small(self, func: Any, facts: Facts, call: Any, given: list[torch.Tensor]) -> bool:
        """Whether an operator with these arguments makes small tensors only."""
        if facts.writes or depends_on_values(func):
            return True
        args, kwargs = call
        described = self._shapes.result_of(func, args, kwargs, given)
        return all(_numel(one) <= _MOST for one in _leaves(described) if isinstance(one, Made))


@contextmanager
def memory_left_unfilled() -> Iterator[None]:
    """While this is open, torch leaves new memory alone, also where algorithms have to be deterministic."""
    switches: Any = torch.utils.deterministic
    before = switches.fill_uninitialized_memory
    switches.fill_uninitialized_memory = False
    try:
        yield
    finally:
        switches.fill_uninitialized_memory = before


def is_valueless(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no values.

    Args:
        tensor: any tensor.
    """
    return hasattr(storage_object(tensor), _VALUELESS)


def forget_values(tensor: torch.Tensor) -> None:
    """A tensor has no values from now on, nor has what shares its memory.

    Args:
        tensor: any tensor.
    """
    setattr(storage_object(tensor), _VALUELESS, True)


def refuse_valueless(tensor: torch.Tensor, what: str) -> None:
    """Refuse to read a tensor without values.

    Args:
        tensor: any tensor.
        what: what reads it.

    Raises:
        ValuesNeeded: it has none.
    """
    if is_valueless(tensor):
        raise ValuesNeeded(f"{what} needs the values of a tensor of shape {tuple(tensor.shape)}")


def valueless_like(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of the same shapes without values; what shares memory among them shares the new one, too.

    Args:
        tensors: any dense tensors.
    """
    made = blank_tensors(tensors, _CPU)
    for tensor in made:
        forget_values(tensor)
    return made


def is_decided_by(tensor: torch.Tensor) -> bool:
    """Whether a tensor keeps its values, since models may decide by them: small ones of whole numbers.

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


def _supposed(name: str, given: list[torch.Tensor], args: Any) -> torch.Tensor | None:
    """The answer to `isnan`, `isinf` and `isfinite`: all numbers are supposed to be finite.

    Torch takes some of these apart: it asks whether a tensor is itself, or infinity.
    """
    answer: bool | None = _FINITE.get(name)
    if name in ("eq", "ne"):
        if args[0] is args[1]:
            answer = name == "eq"
        elif isinstance(args[1], float) and isinf(args[1]):
            answer = name == "ne"
    return None if answer is None or given[0].numel() > _MOST else torch.full(given[0].shape, answer)


def _without_masks(func: Any, facts: Facts, args: Any) -> Any:
    """Arguments with whole numbers in place of masks, which say how much is taken.

    Raises:
        ValuesNeeded: the result depends on other values than those of masks, or a mask has none.
    """
    masks = facts.rule.masks
    if masks is None:
        if depends_on_values(func):
            raise ValuesNeeded(f"{facts.name} needs values")
        return args
    indices: list[Any] = []
    for index in args[masks]:
        if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
            refuse_valueless(index, facts.name)
            with without_dispatch_modes():
                indices.extend(index.nonzero(as_tuple=True))
        else:
            indices.append(index)
    return (*args[:masks], indices, *args[masks + 1 :])


def _made(described: Any, given: list[torch.Tensor]) -> Any:
    """A result as it was described."""
    if isinstance(described, Made):
        made = torch.empty_strided(described.size, described.stride, dtype=described.dtype)
        if made.untyped_storage().nbytes() != described.storage_bytes:
            memory = torch.empty(described.storage_bytes, dtype=torch.uint8).view(described.dtype)
            made = over(memory, described.size, described.stride)
        forget_values(made)
        return made
    if isinstance(described, Given):
        return given[described.index]
    if isinstance(described, (list, tuple)):
        return type(described)([_made(item, given) for item in described])
    return described


def _leaves(described: Any) -> list[Any]:
    return [*described] if isinstance(described, (list, tuple)) else [described]


def _numel(made: Made) -> int:
    count = 1
    for size in made.size:
        count *= size
    return count
