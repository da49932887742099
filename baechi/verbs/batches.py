"""Inputs of another batch: rows repeated or left out, and what shares memory still shares it; and which fits.

ids, labels = x, x                     one tensor, given twice: resized, it is one tensor
ids, labels = x[:, :-1], x[:, 1:]      views of one tensor: resized, they are views of one tensor
"""

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from baechi.records.inputs import Inputs
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in
from baechi.torchlib.tensors.storage import storage_object

_MOST = 2**24

Resize = Callable[[torch.Tensor], torch.Tensor]


def batch_size(inputs: Inputs) -> int | None:
    """The first dimension of the first tensor that has one."""
    given = [tensor for tensor in tensors_in(inputs.args, inputs.kwargs) if tensor.dim()]
    return given[0].shape[0] if given else None


def resized_batch(inputs: Inputs, size: int, wanted: int) -> Inputs:
    """The inputs with another batch: rows repeated, or left out."""

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            return tensor.new_empty((wanted, *tensor.shape[1:]))
        return tensor.index_select(0, torch.arange(wanted, device=tensor.device) % size)

    return _each_of_batch(resize, inputs, size)


def fitting_batches(spare_bytes: Callable[[int], int]) -> list[tuple[int, int]]:
    """Batches that fit, up to about the largest: by doubling, then by halves."""
    found = [(0, 0)]
    high = 1
    while high <= _MOST and (spare := spare_bytes(high)) >= 0:
        found.append((high, spare))
        high = 2 * high
    while high - found[-1][0] > max(1, high // 128):
        middle = (found[-1][0] + high) // 2
        spare = spare_bytes(middle)
        if spare >= 0:
            found.append((middle, spare))
        else:
            high = middle
    return found[1:]


def largest_that_fits(spare_bytes: Callable[[int], int], about: Sequence[tuple[int, int]]) -> int:
    """The largest batch that fits: it fits, and the next one does not."""
    (first, most), (guess, idle) = (about[0], about[-1]) if about else ((0, 0), (1, 0))
    row_bytes = (most - idle) / (guess - first) if guess > first else 0.0
    low, high, stride = 0, _MOST + 1, 1
    while True:
        spare = spare_bytes(guess)
        low, high = (guess, high) if spare >= 0 else (low, guess)
        if high - low <= 1:
            return low
        if low and high <= _MOST and stride > 2:
            guess = (low + high) // 2
            continue
        too_much = spare - idle if spare >= 0 else -spare
        step = max(stride, int(too_much / row_bytes) if row_bytes > 0 else 0)
        guess = min(low + step, high - 1) if spare >= 0 else max(low + 1, high - step)
        stride = 2 * stride


def part_of_batch(inputs: Inputs, parts: int) -> Inputs:
    """The largest of equal parts of a batch, along the leading dimension."""
    if parts == 1:
        return inputs
    size = batch_size(inputs)
    if not 1 <= parts <= (size or 0):
        rows = "no tensor with rows" if size is None else f"{size} rows"
        raise ValueError(
            f"microbatches is {parts}, and the batch has {rows}: each needs a row at least. Use fewer"
        )
    assert size is not None
    return resized_batch(inputs, size, -(-size // parts))


def batch_on_meta(inputs: Inputs, size: int, wanted: int) -> Inputs:
    """Inputs of another batch that take no memory."""

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        shape = (wanted, *tensor.shape[1:])
        return tensor.new_empty(shape, device="meta", requires_grad=tensor.requires_grad)

    return _each_of_batch(resize, inputs, size)


def _each_of_batch(resize: Resize, inputs: Inputs, size: int) -> Inputs:
    """The inputs, with the tensors changed that have a row for each item of the batch."""
    given = {id(tensor): tensor for tensor in tensors_in(inputs.args, inputs.kwargs)}
    given = {key: tensor for key, tensor in given.items() if tensor.dim() and tensor.shape[0] == size}
    memory = {key: storage_object(tensor) for key, tensor in given.items()}
    sharing = Counter(map(id, memory.values()))
    rows: dict[tuple[int, int], torch.Tensor] = {}
    made: dict[int, torch.Tensor] = {}
    for key, tensor in given.items():
        if sharing[id(memory[key])] > 1 and _is_part_of_rows(tensor, size):
            row = tensor.stride(0)
            if (id(memory[key]), row) not in rows:
                rows[id(memory[key]), row] = resize(tensor.as_strided((size, row), (row, 1), 0))
            whole = rows[id(memory[key]), row]
            shape = (whole.shape[0], *tensor.shape[1:])
            made[key] = whole.as_strided(shape, tensor.stride(), tensor.storage_offset())
        else:
            made[key] = resize(tensor)
    args, kwargs = map_tensors(lambda tensor: made.get(id(tensor), tensor), (inputs.args, inputs.kwargs))
    return Inputs(*args, **kwargs)


def _is_part_of_rows(tensor: torch.Tensor, size: int) -> bool:
    """Whether a tensor without gradient is a part of each row of its memory, such as `x[:, 1:]`."""
    if tensor.layout != torch.strided or tensor.requires_grad:
        return False
    row, *strides = tensor.stride()
    last = sum([(length - 1) * stride for length, stride in zip(tensor.shape[1:], strides, strict=True)])
    there = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.storage_offset() + last < row and size * row <= there
