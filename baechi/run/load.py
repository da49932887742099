"""Load a checkpoint onto the devices of a distributed model, one tensor at a time through the host."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baechi.backend import AbstractBackend
from baechi.backend.real.devices import TorchDevices
from baechi.errors import CheckpointError
from baechi.run.assign import runtime_of
from baechi.run.weights.checkpoint import Checkpoint, Entry
from baechi.run.weights.match import planned_devices, weights_of
from baechi.run.weights.move import flatten_recurrent
from baechi.run.weights.shards import by_shard
from baechi.torchlib.elsewhere import ElsewhereTensor
from baechi.torchlib.shards.cut import refill
from baechi.torchlib.shards.weight import ShardedWeight
from baechi.torchlib.tensors.storage import storage_bytes, storage_object
from baechi.torchlib.tensors.swap_memory import exchange

logger = logging.getLogger(__name__)

_SHOWN = 12
_CAST = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Loading casts between these dtypes. Others (integers, eight-bit floats with a scale) must match."""


def load(model: nn.Module, path: str | Path, *, strict: bool = True) -> nn.Module:
    """Load a safetensors checkpoint straight onto the devices of a distributed model.

    Args:
        model: a distributed model; weights that are on `meta` get their memory now.
        path: a file, an index, or the folder that has one of them.
        strict: whether every weight must be in the checkpoint, and nothing else.

    Returns:
        The same model.

    Raises:
        CheckpointError: the checkpoint does not match the model; nothing was loaded.
        BaechiError: the model is not distributed, or not planned yet.
    """
    runtime = runtime_of(model)
    checkpoint, weights = Checkpoint(path), weights_of(model)
    loaded = {name: entry for name, entry in checkpoint.entries.items() if name in weights}
    _check(model, checkpoint, weights, loaded, strict=strict)
    planned = planned_devices(runtime.plan, by_shard(weights, runtime.cuts))
    backend, sharing = runtime.backend, _sharing(weights)
    own = {name: entry for name, entry in loaded.items() if not isinstance(weights[name], ElsewhereTensor)}
    with torch.no_grad():
        for name, value in checkpoint.tensors(own):
            weight = weights[name]
            if weight.is_meta and isinstance(weight, ShardedWeight):
                places = [planned[f"{name}[{number}]"] for number in range(len(weight.shards))]
                pairs = zip(weight.shards, places, strict=True)
                refill(weight, [backend.room_for([shard], place)[0] for shard, place in pairs])
            elif weight.is_meta:
                _make_room(sharing[storage_object(weight)], backend, planned[name])
            weight.copy_(value)
            del value  # release it before the next one is read, to hold one tensor on the host at a time
    if isinstance(backend, TorchDevices):
        flatten_recurrent(model)
    return model


def _sharing(weights: Mapping[str, torch.Tensor]) -> dict[Any, list[torch.Tensor]]:
    """Weights by the storage that they share."""
    sharing: dict[Any, list[torch.Tensor]] = {}
    for weight in {id(weight): weight for weight in weights.values()}.values():
        sharing.setdefault(storage_object(weight), []).append(weight)
    return sharing


def _make_room(weights: list[torch.Tensor], backend: AbstractBackend, place: str) -> None:
    """Allocate a device's memory for `meta` weights of one storage; they stay the same objects."""
    for weight, real in zip(weights, backend.room_for(weights, place), strict=True):
        exchange(weight, real)


def _check(
    model: nn.Module,
    checkpoint: Checkpoint,
    weights: Mapping[str, torch.Tensor],
    loaded: Mapping[str, Entry],
    *,
    strict: bool,
) -> None:
    wrong = [fault for name, entry in loaded.items() for fault in _differences(name, entry, weights[name])]
    absent, empty = _missing(model, weights, loaded)
    unknown = [name for name in checkpoint.entries if name not in weights]
    rest = [
        f"{what}: {_some(names)}"
        for what, names in (
            ("not in the checkpoint", absent),
            ("not in the model", unknown),
            ("on meta, and in no checkpoint, since these buffers are not persistent", empty),
        )
        if names
    ]
    if wrong or (rest and strict):
        cure = "; strict=False loads what matches" if not wrong else ""
        if empty:
            cure += "; give such buffers their values before the model is distributed"
        what = f"{checkpoint.path} does not match this {type(model).__name__}{cure}"
        raise CheckpointError(what, (*_some_of(wrong), *rest))
    for line in rest:
        logger.warning("%s: %s", checkpoint.path, line)


def _differences(name: str, entry: Entry, weight: torch.Tensor) -> Iterator[str]:
    if entry.shape != tuple(weight.shape):
        yield f"{name} is {entry.shape} in the checkpoint, {tuple(weight.shape)} in the model"
    same = entry.dtype == weight.dtype or (entry.dtype in _CAST and weight.dtype in _CAST)
    if not same:
        yield f"{name} is {entry.dtype} in the checkpoint, {weight.dtype} in the model: that is no mere cast"


def _missing(
    model: nn.Module, weights: Mapping[str, torch.Tensor], loaded: Mapping[str, Entry]
) -> tuple[list[str], list[str]]:
    """Weights that the checkpoint lacks; and buffers on `meta` that no checkpoint has."""
    given = {id(weights[name]) for name in loaded}
    wholes = {storage_object(weights[name]) for name in loaded if _is_whole(weights[name])}
    lacking = [name for name, w in weights.items() if id(w) not in given and storage_object(w) not in wholes]
    saved = model.state_dict(keep_vars=True)
    absent = [name for name in lacking if name in saved]
    return absent, [name for name in lacking if name not in saved and weights[name].is_meta]


def _is_whole(weight: torch.Tensor) -> bool:
    """Whether a weight fills its storage, so that loading it also sets the values of all its views."""
    return weight.numel() * weight.element_size() == storage_bytes(weight)


def _some_of(faults: list[str]) -> list[str]:
    more = len(faults) - _SHOWN
    return faults[:_SHOWN] + ([f"and {more} more"] if more > 0 else [])


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
