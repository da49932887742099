"""Batches of a kind that was split before: how they are divided is found once, and done again.

A kind is a model's signature, what its tensors are shaped like, and which of them are one (labels that are
the inputs). What may need another look at each call (containers, objects, arrays, tensors of other layouts,
what a function divides) has no kind.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.partition import Parted, Split, chunks, dimensions, is_own, sizes_of

_TENSORS = (torch.Tensor, nn.Parameter)
_PLAIN = (type(None), bool, int, float, str)


def kind_of(model: nn.Module, inputs: Inputs) -> Hashable:
    """What batches that are divided alike have in common; None if each needs a look."""
    said: list[Any] = [vars(model).get("forward"), len(inputs.args), *inputs.kwargs]
    seen: dict[int, int] = {}
    for value in (*inputs.args, *inputs.kwargs.values()):
        kind = type(value)
        if kind in _TENSORS and value.layout is torch.strided and not value.is_nested:
            said.append((seen.setdefault(id(value), len(seen)), *value.shape))
        elif kind in _PLAIN:
            said.append(kind)
        else:
            return None
    return tuple(said)


@dataclass(frozen=True)
class Cuts:
    """How batches of a kind are divided.

    Args:
        sizes: how many rows each part had that was seen first.
        dims: by place among the values that a call is handed, the dimension of its rows; None for whole.
        divided, whole: see `Parted`.
    """

    sizes: tuple[int, ...]
    dims: tuple[int | None, ...]
    divided: tuple[str, ...]
    whole: tuple[str, ...]

    @classmethod
    def learned(cls, model: nn.Module, inputs: Inputs, parts: Parted, split: Split) -> "Cuts | None":
        """From a batch that was divided."""
        if any(map(is_own, split.values())):
            return None
        sizes = tuple(parts.rows)
        dims = tuple(dimensions(model, inputs, sum(sizes), split))
        dim_of: dict[int, int | None] = {}
        for value, dim in zip((*inputs.args, *inputs.kwargs.values()), dims, strict=True):
            if isinstance(value, torch.Tensor) and dim_of.setdefault(id(value), dim) != dim:
                return None  # one tensor, divided in two ways
        return cls(sizes, dims, parts.divided, parts.whole)

    def parted(self, inputs: Inputs, microbatches: int) -> Parted:
        """Divide a batch of the kind."""
        sizes, grad = self.sizes, torch.is_grad_enabled()
        if len(sizes) != microbatches:
            sizes = sizes_of(sum(sizes), microbatches)
        columns, leaves = [], []
        divided: dict[int, Sequence[torch.Tensor]] = {}
        for value, dim in zip((*inputs.args, *inputs.kwargs.values()), self.dims, strict=True):
            if isinstance(value, torch.Tensor):
                each = divided.get(id(value))
                if each is None and grad and value.requires_grad:
                    each = chunks(value, dim, sizes, grad=True)
                    leaves.append((value, dim, each))
                elif each is None:
                    each = (value,) * microbatches if dim is None else value.split(list(sizes), dim)
                divided[id(value)] = each
                columns.append(each)
            else:
                columns.append((value,) * microbatches)
        parts, by_place = [], len(inputs.args)
        for here in zip(*columns, strict=True):
            kwargs = dict(zip(inputs.kwargs, here[by_place:], strict=True))
            parts.append(Inputs(*here[:by_place], **kwargs))
        return Parted(tuple(parts), sizes, tuple(leaves), self.divided, self.whole, is_plain=True)
