"""Operators that compute nothing: their results have the right shapes, but no values ("valueless" tensors).

    inputs      result
    valueless   valueless    only its shape is inferred
    mixed       valueless
    values      values       if it is small (masks, positions, lengths): the real kernel runs

Valueless tensors are ordinary CPU tensors, so autograd, views and modules treat them as in any run. No kernel
writes their memory, so the system never backs it with pages: a model of a terabyte takes address space only.

Small inputs and buffers keep their values, and so does what follows from them alone. So a model that branches
on its inputs gets an answer (`if mask.all()`); one that branches on activations gets an error.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

from baechi.torchlib.fakes.assumptions import assumed
from baechi.torchlib.fakes.shapes import Given, Made, Shapes, Views, is_cheap, on_zeros, sized_by_values
from baechi.torchlib.fakes.valueless import forget_values, is_valueless, made_valueless
from baechi.torchlib.operators.facts import Facts, draws, facts_of, flat, writes_of
from baechi.torchlib.private.modes import without_dispatch_modes
from baechi.torchlib.tensors.blank_memory import blank_tensors
from baechi.torchlib.tensors.layout import copy_from_row, copy_with_layout, over

_CPU = torch.device("cpu")

_MAX_ELEMENTS = 1 << 20
"""Tensors with more elements have no values: they are neither kept from inputs nor computed."""


class ValuesNeeded(RuntimeError):
    """An operator, or the model's code, needs the values of a tensor that has none."""


class ShapeKernels:
    """Runs operators. Kernels run only for small results that follow from known values alone."""

    def __init__(self) -> None:
        self._shapes = Shapes()

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator."""
        facts = facts_of(func)
        # they read and write no values
        if facts.aliases or facts.reshapes or facts.rule.new_memory or facts.rule.resizes:
            return func(*args, **kwargs)
        given = flat((*args, *kwargs.values()))
        if not any(map(is_valueless, given)) and self._is_small(func, facts, (args, kwargs), given):
            return func(*args, **kwargs)
        if facts.rule.nests or any(tensor.is_nested for tensor in given):
            return _nested(func, facts, args, kwargs, given)
        if facts.rule.sized_by is not None:
            return _sized_by_values(func, facts, args, kwargs, given)
        if facts.name == "masked_select" and not is_valueless(args[1]):
            shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
            taken = int(args[1].expand(shape).sum())
            return _made(Made((taken,), (1,), args[0].dtype, taken * args[0].element_size()), given)
        answer = assumed(facts.name, given, args, _MAX_ELEMENTS)
        if answer is not None:
            return answer
        args = _with_masks_as_indices(func, facts, args)
        if draws(func, args, kwargs) and is_cheap(given):
            # advances the generator as the kernel would, so later numbers that the model's code draws
            # and reads (to drop a layer at random) are those of a real run
            on_zeros(func, args, kwargs)
        written = list(writes_of(facts, args, kwargs))
        for tensor in written:
            forget_values(tensor)
        if facts.returns_written and written:
            return written[0] if len(written) == 1 else tuple(written)
        given = flat((*args, *kwargs.values()))  # again: masks are exchanged
        described = self._shapes.result_of(func, args, kwargs, given)
        return func(*args, **kwargs) if isinstance(described, Views) else _made(described, given)

    def copy(self, tensor: torch.Tensor, *, in_row: bool = False) -> torch.Tensor:
        """A copy of a tensor with the same layout, or as it comes in a row; valueless if the tensor is."""
        filled = not is_valueless(tensor)
        if in_row:
            copied = copy_from_row(tensor, filled=filled)
        else:
            copied = copy_with_layout(tensor, _CPU, filled=filled)
        return copied if filled else made_valueless(copied)

    def _is_small(self, func: Any, facts: Facts, call: Any, given: list[torch.Tensor]) -> bool:
        """Whether an operator with these arguments makes small tensors only."""
        # a write in place makes no tensor; a result whose shape depends on values cannot be inferred
        # first, but its inputs have values, so they are small
        if facts.writes or depends_on_values(func) or facts.rule.sized_by is not None:
            return True
        args, kwargs = call
        described = self._shapes.result_of(func, args, kwargs, given)
        return all(_numel(one) <= _MAX_ELEMENTS for one in _leaves(described) if isinstance(one, Made))


@contextmanager
def memory_left_unfilled() -> Iterator[None]:
    """Within this context, torch does not fill new memory. In deterministic mode it would write NaN there."""
    switches: Any = torch.utils.deterministic
    before = switches.fill_uninitialized_memory
    switches.fill_uninitialized_memory = False
    try:
        yield
    finally:
        switches.fill_uninitialized_memory = before


def refuse_valueless(tensor: torch.Tensor, what: str) -> None:
    """Refuse to read a tensor without values."""
    if is_valueless(tensor):
        raise ValuesNeeded(f"{what} needs the values of a tensor of shape {tuple(tensor.shape)}")


def valueless_like(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Valueless tensors of the same shapes and layouts. Those of tensors that share memory share it, too."""
    return [made_valueless(tensor) for tensor in blank_tensors(tensors, _CPU)]


def keeps_values(tensor: torch.Tensor) -> bool:
    """Whether an input or buffer keeps its values: small ones do, since models branch on them."""
    plain = tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_meta or tensor.is_quantized)
    return plain and tensor.numel() <= _MAX_ELEMENTS


def depends_on_values(func: Any) -> bool:
    """Whether an operator returns a number, or a shape, that depends on its arguments' values."""
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def _with_masks_as_indices(func: Any, facts: Facts, args: Any) -> Any:
    """An indexing operator's arguments, with integer indices in place of boolean masks.

    The shape of `x[mask]` depends on the mask's values; that of `x[indices]` does not. If one number is
    written, no shape depends on where: a mask without values then selects nothing.
    """
    masks = facts.rule.masks
    if masks is None:
        if depends_on_values(func):
            raise ValuesNeeded(f"{facts.name} needs values")
        return args
    indices: list[Any] = []
    writes_one = len(args) > masks + 1 and args[masks + 1].numel() == 1
    for index in args[masks]:
        if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
            if writes_one and is_valueless(index):
                indices.extend([torch.empty(0, dtype=torch.int64)] * index.dim())
                continue
            refuse_valueless(index, facts.name)
            with without_dispatch_modes():
                indices.extend(index.nonzero(as_tuple=True))
        else:
            indices.append(index)
    return (*args[:masks], indices, *args[masks + 1 :])


def _sized_by_values(
    func: Any, facts: Facts, args: Any, kwargs: dict[str, Any], given: list[torch.Tensor]
) -> Any:
    """The results of an operator whose shapes follow from values of some arguments, such as lengths.

    What follows from these alone has values.
    """
    deciding = flat([args[position] for position in facts.rule.sized_by or ()])
    for tensor in deciding:
        refuse_valueless(tensor, facts.name)
    return _made(sized_by_values(func, args, kwargs, deciding), given)


def _nested(func: Any, facts: Facts, args: Any, kwargs: dict[str, Any], given: list[torch.Tensor]) -> Any:
    """The results of an operator that makes or takes nested tensors: these have no shape functions.

    So the kernel runs on whatever numbers are there, if they are few; the results have no values.
    """
    for tensor in flat([args[position] for position in facts.rule.sized_by or ()]):
        refuse_valueless(tensor, facts.name)
    if depends_on_values(func) or not is_cheap(given):
        raise ValuesNeeded(f"{facts.name} needs the values of nested tensors")
    result = func(*args, **kwargs)
    for made in flat(result if isinstance(result, (list, tuple)) else (result,)):
        if not any(made is tensor for tensor in given):
            made_valueless(made)
    for tensor in writes_of(facts, args, kwargs):
        forget_values(tensor)
    return result


def _made(described: Any, given: list[torch.Tensor]) -> Any:
    """A result with valueless tensors in place of `Made`, and arguments in place of `Given`."""
    if isinstance(described, Made):
        made = torch.empty_strided(described.size, described.stride, dtype=described.dtype)
        if made.untyped_storage().nbytes() != described.storage_bytes:  # the tensor does not fill its memory
            memory = torch.empty(described.storage_bytes, dtype=torch.uint8).view(described.dtype)
            made = over(memory, described.size, described.stride)
        return made_valueless(made)
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
