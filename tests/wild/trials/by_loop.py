"""The plain model's way through a batch in parts: what a step in microbatches has to give."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.partition import parted
from baechi.run.pipeline.lanes.user_state import attribute_tables
from baechi.torchlib.modules.tables import content_of, differ, refill
from baechi.torchlib.tensors.pytree import named_tensors
from wild.trials.common import seed

_CACHES = ("past_key_values", "cache_params", "state", "mems")


def loss_of(result: Any) -> torch.Tensor:
    """A scalar made of all floating point tensors that a model returned, but for its caches."""
    terms = [
        tensor.double().pow(2).mean() * (1 + index / 4)
        for index, (name, tensor) in enumerate(named_tensors("result", result))
        if tensor.is_floating_point() and tensor.numel() and not any(f".{cache}" in name for cache in _CACHES)
    ]
    return torch.stack(terms).sum()


def loss_beside(result: Any, target: Any) -> torch.Tensor:
    """The same, as `distribute(loss=...)` calls it: there is no target."""
    return loss_of(result)


def trained(model: nn.Module, batch: Inputs, microbatches: int, loss: str) -> dict[str, torch.Tensor]:
    """One seeded step in training, part by part, with gradients.

    Args:
        model: the plain model.
        batch: a whole batch.
        microbatches: into how many parts.
        loss: `"inside"` if the model returns it, `"function"` if it is made of each part's outputs, `"none"`
            if it is made of the joined outputs.

    Returns:
        The loss, or the joined outputs by name.
    """
    model.train()
    seed()
    seeds = torch.randint(2**62, (microbatches,)).tolist() if microbatches > 1 else [None]
    parts = parted(model, batch, microbatches, {})
    results: list[Any] = []
    with _each_from_here(model, microbatches) as parts_of_state:
        for part, rows, own, _ in zip(parts.parts, parts.rows, seeds, parts_of_state, strict=True):
            if own is not None:
                torch.manual_seed(own)
            result = model(*part.args, **part.kwargs)
            if loss != "none":
                share = rows / sum(parts.rows)
                result = loss_of(result) if loss == "function" else result
                result.backward(torch.full_like(result, share))
                result = result.detach() * share
            results.append(result)
    if loss != "none":
        return {"loss": sum(results[1:], results[0])}
    found = joined(results, parts.rows)
    loss_of(found).backward()
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def evaluated(model: nn.Module, batch: Inputs, microbatches: int) -> dict[str, torch.Tensor]:
    """The joined outputs of an evaluation, part by part.

    Args:
        model: the plain model.
        batch: a whole batch.
        microbatches: into how many parts.
    """
    model.eval()
    seed()
    seeds = torch.randint(2**62, (microbatches,)).tolist() if microbatches > 1 else [None]
    parts = parted(model, batch, microbatches, {})
    results = []
    with torch.no_grad(), _each_from_here(model, microbatches) as parts_of_state:
        for part, own, _ in zip(parts.parts, seeds, parts_of_state, strict=True):
            if own is not None:
                torch.manual_seed(own)
            results.append(model(*part.args, **part.kwargs))
    return joined(results, parts.rows)


def joined(results: list[Any], rows: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """What the parts returned, by name, as far as it has a row for each row of the batch, or is a loss.

    Args:
        results: by part.
        rows: how many each part has.
    """
    named = [dict(named_tensors("result", result)) for result in results]
    found = {}
    for name, first in named[0].items():
        tensors = [one[name] for one in named if name in one]
        if len(tensors) < len(rows):
            continue
        if all(tensor is first for tensor in tensors):
            found[name] = first
        elif (dim := _dim_of_rows(tensors, rows)) is not None:
            found[name] = torch.cat(tensors, dim)
        elif first.dim() == 0 and first.is_floating_point() and ("loss" in name or name == "result"):
            shares = [tensor * (count / sum(rows)) for tensor, count in zip(tensors, rows, strict=True)]
            found[name] = sum(shares[1:], shares[0])
    return found


def _dim_of_rows(tensors: list[torch.Tensor], rows: tuple[int, ...]) -> int | None:
    """The first dimension that has as many as each part has rows, where the others are alike."""
    for dim in range(min([tensor.dim() for tensor in tensors])):
        others = {(*tensor.shape[:dim], *tensor.shape[dim + 1 :]) for tensor in tensors}
        if [tensor.shape[dim] for tensor in tensors] == list(rows) and len(others) == 1:
            return dim
    return None


@contextmanager
def _each_from_here(model: nn.Module, microbatches: int) -> Iterator[Iterator[int]]:
    """Within this context, each part begins with the attributes that are there now."""
    before = [(table, content_of(table)) for table in attribute_tables(model)]

    def numbers() -> Iterator[int]:
        for number in range(microbatches):
            if number:
                for table, content in before:
                    if differ(content_of(table), content):
                        refill(table, content)
            yield number

    yield numbers()
