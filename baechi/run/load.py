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
from baechi.run.checkpoints.by_name import load_optimizer, optimizer_from
from baechi.run.checkpoints.reader import Stored, is_stored
from baechi.run.checkpoints.together import alike, is_plain, wires_of
from baechi.run.runtime import Runtime
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


def load(
    model: nn.Module,
    path: str | Path,
    *,
    strict: bool = True,
    optimizer: torch.optim.Optimizer | None = None,
) -> nn.Module:
    """Load a checkpoint straight onto the devices of a distributed model: safetensors, or what `save` wrote.

    Args:
        model: a distributed model; weights that are on `meta` get their memory now. What `save` wrote goes
            into a plain model, too.
        path: a safetensors file, an index, or the folder that has one of them; a folder that `save` or
            `torch.distributed.checkpoint` wrote.
        strict: whether every weight must be in the checkpoint, and nothing else.
        optimizer: of this model: its state is read as well, of what `save` wrote.

    Returns:
        The same model.

    Raises:
        CheckpointError: the checkpoint does not match the model or optimizer; nothing was loaded.
        BaechiError: the model is not distributed, or not planned yet.
        RankError: another rank could not read it.
    """
    ways, folder = wires_of(model), Path(path)
    stored = is_stored(folder)
    if not (stored and is_plain(model)):
        runtime_of(model)
    with alike(ways):
        checkpoint = Stored(folder) if stored else Checkpoint(folder)
        if optimizer is None:
            return fill(model, checkpoint, strict=strict)
        if not isinstance(checkpoint, Stored):
            raise ValueError(
                f"{folder} is a safetensors checkpoint, which has no optimizer: leave optimizer= out"
            )
        state = optimizer_from(model, optimizer, checkpoint)
        fill(model, checkpoint, strict=strict)
        load_optimizer(optimizer, state)
    return model


def fill(model: nn.Module, checkpoint: Checkpoint | Stored, *, strict: bool) -> nn.Module:
    """Read the weights that are here into a model."""
    weights = weights_of(model)
    loaded = {name: entry for name, entry in checkpoint.entries.items() if name in weights}
    _check(model, checkpoint, weights, loaded, strict=strict)
    own = {name: entry for name, entry in loaded.items() if not isinstance(weights[name], ElsewhereTensor)}
    runtime = None if is_plain(model) else runtime_of(model)
    room = _Room(weights, runtime)
    with torch.no_grad():
        for name, value in checkpoint.tensors(own):
            if weights[name].is_meta:
                room.make(name)
            weights[name].copy_(value)
            del value  # release it before the next one is read, to hold one tensor on the host at a time
    if isinstance(checkpoint, Stored):
        for name, extra in checkpoint.others().items():
            model.get_submodule(name.rpartition(".")[0]).set_extra_state(extra)
    if runtime is not None and isinstance(runtime.backend, TorchDevices):
        flatten_recurrent(model)
    return model


class _Room:
    """Memory for weights on `meta`.

    Args:
        weights: of the model, by name.
        runtime: the model's; None if it has no devices.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], runtime: Runtime | None) -> None:
        self._weights, self._runtime, self._sharing = weights, runtime, _sharing(weights)
        cuts = {} if runtime is None else runtime.cuts
        self._planned = {} if runtime is None else planned_devices(runtime.plan, by_shard(weights, cuts))

    def make(self, name: str) -> None:
        """Let a weight have memory where the plan says."""
        weight = self._weights[name]
        if self._runtime is None:
            raise CheckpointError(
                f"{name} lies on meta, and the model is not distributed: model.to_empty() first"
            )
        backend = self._runtime.backend
        if isinstance(weight, ShardedWeight):
            places = [self._planned[f"{name}[{number}]"] for number in range(len(weight.shards))]
            pairs = zip(weight.shards, places, strict=True)
            refill(weight, [backend.room_for([shard], place)[0] for shard, place in pairs])
        else:
            _make_room(self._sharing[storage_object(weight)], backend, self._planned[name])


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
    checkpoint: Checkpoint | Stored,
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
