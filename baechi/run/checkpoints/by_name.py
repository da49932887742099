"""What this process has of a model and its optimizer, by names, as torch's `get_state_dict` has it.

model       h.0.weight: values                              names of the model's `state_dict`
optimizer   state         h.0.weight: exp_avg: values       weights of other ranks: not here
            param_groups  lr: 0.1, params: [h.0.weight]     alike on all ranks
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import nn

from baechi.errors import BaechiError, CheckpointError
from baechi.run.checkpoints.reader import EXTRA, Stored
from baechi.torchlib.elsewhere import ElsewhereTensor
from baechi.torchlib.shards.files import wholes_of
from baechi.torchlib.shards.weight import ShardedWeight

_Group = Mapping[str, Any]


def model_state(model: nn.Module) -> dict[str, Any]:
    """The part of a model's state dict that has values here."""
    state = model.state_dict(keep_vars=True)
    weights = {*map(id, model.parameters()), *map(id, model.buffers())}
    for name, value in state.items():
        refuse_keys(name, value)
        if name.rpartition(".")[2] != EXTRA and id(value) not in weights:
            raise BaechiError(
                f"the state dict of this {type(model).__name__} has {name!r}, which is none of its "
                "weights (a hook makes it), so it could not be read in place: "
                "save such a model with torch.save"
            )
        if isinstance(value, torch.Tensor) and value.is_meta:
            raise BaechiError(f"{name} lies on meta and has no values to be saved: load the model first")
    return wholes_of({name: one for name, one in state.items() if not isinstance(one, ElsewhereTensor)})


def refuse_keys(name: str, value: Any) -> None:
    """Raise if a dict has keys that torch's checkpoints would change."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            if not isinstance(key, str):
                raise ValueError(
                    f"{name} has the key {key!r}, which torch would make a text: let the keys "
                    "of its dicts be texts, or save it with torch.save"
                )
            refuse_keys(f"{name}.{key}", one)


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of an optimizer, as far as it is here; its groups name their weights."""
    names = names_in(model, optimizer)
    flat, packed = [name for group in names for name in group], optimizer.state_dict()
    state = {flat[number]: _on_host(one) for number, one in packed["state"].items()}
    refuse_keys(f"the state of the {type(optimizer).__name__}", state)
    groups = [
        {**group, "params": list(own)} for group, own in zip(packed["param_groups"], names, strict=True)
    ]
    return {"state": state, "param_groups": groups}


def names_in(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """By group of an optimizer, the names of its weights: of a tied one the first."""
    name_of = {id(weight): name for name, weight in model.named_parameters()}
    for number, group in enumerate(optimizer.param_groups):
        strange = [tuple(one.shape) for one in group["params"] if id(one) not in name_of]
        if strange:
            raise ValueError(
                f"group {number} of the {type(optimizer).__name__} trains a tensor of shape {strange[0]}, "
                f"which is no parameter of this {type(model).__name__}, so it has no name in a "
                "checkpoint: make the optimizer of model.parameters()"
            )
    return [[name_of[id(one)] for one in group["params"]] for group in optimizer.param_groups]


def _on_host(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one.on_host() if isinstance(one, ShardedWeight) else one for key, one in state.items()}


def optimizer_from(model: nn.Module, optimizer: torch.optim.Optimizer, stored: Stored) -> dict[str, Any]:
    """What an optimizer's `load_state_dict` takes, of a checkpoint: of the weights that are here.

    An optimizer that made no step has no state yet, and cannot say what it will need; the checkpoint can.
    """
    names = names_in(model, optimizer)
    saved = _groups_of(stored)
    group_of = {name: group for group in saved for name in group["params"]}
    kind = type(optimizer).__name__
    absent = [name for group in names for name in group if name not in group_of]
    if absent:
        raise CheckpointError(
            f"{stored.path} has no state of an optimizer for weights that this {kind} trains", tuple(absent)
        )
    numbers, groups = count(), []
    own: dict[int, torch.Tensor] = {}
    numbered: dict[str, int] = {}
    for group, called in zip(optimizer.param_groups, names, strict=True):
        options = _options(called, group_of, stored) if called else {}
        indices = [next(numbers) for _ in called]
        groups.append(
            {**{key: one for key, one in group.items() if key != "params"}, **options, "params": indices}
        )
        own.update(zip(indices, group["params"], strict=True))
        numbered.update(zip(called, indices, strict=True))
    here = {
        name: own[number] for name, number in numbered.items() if not isinstance(own[number], ElsewhereTensor)
    }
    read = stored.read(["optimizer", "state"], here)
    return {"state": {numbered[name]: one for name, one in read.items()}, "param_groups": groups}


def load_optimizer(optimizer: torch.optim.Optimizer, packed: dict[str, Any]) -> None:
    """Load state into an optimizer, each tensor in the dtype that it was saved in."""
    optimizer.load_state_dict(packed)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for number, state in packed["state"].items():
        loaded = optimizer.state[weights[number]]
        for key, value in state.items():
            now = loaded.get(key)
            if isinstance(now, torch.Tensor) and now.dtype != value.dtype:  # torch casts to the weight's
                loaded[key] = value.to(now.device)


def _groups_of(stored: Stored) -> Sequence[_Group]:
    found: Sequence[_Group] = stored.read(["optimizer"], {"param_groups": None}).get("param_groups", [])
    if not found:
        raise CheckpointError(
            f"{stored.path} has no optimizer: its parts are {', '.join(stored.parts)}. "
            "Save it with optimizer="
        )
    return found


def _options(called: Sequence[str], group_of: Mapping[str, _Group], stored: Stored) -> dict[str, Any]:
    """The options of a group, from the group that its weights had."""
    each = [{key: one for key, one in group_of[name].items() if key not in _OF_GROUP} for name in called]
    for name, one in zip(called, each, strict=True):
        wrong = list(_differing(each[0], one))
        if wrong:
            raise CheckpointError(
                f"{stored.path} was saved with {called[0]} and {name} in groups of other options "
                f"({', '.join(wrong)}), and here they are in one: make the groups "
                "of the optimizer as they were"
            )
    return each[0]


_OF_GROUP = "params", "param_names"


def _differing(one: _Group, other: _Group) -> Iterator[str]:
    for key in {**one, **other}:
        if not bool(one.get(key) == other.get(key)):
            yield f"{key}: {one.get(key)} and {other.get(key)}"
