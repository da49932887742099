"""A model's whole state in one process, brought together tensor by tensor."""

import functools
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from baechi.backend.ranks.devices import RankDevices
from baechi.run.binding import binding_of
from baechi.torchlib.elsewhere import ElsewhereTensor
from baechi.torchlib.shards.files import wholes_of

_GATHERS = "_baechi_gathers"
"""The mark on a `save_pretrained` that takes weights of other ranks."""

_in_ranks: "WeakKeyDictionary[nn.Module, RankDevices]" = WeakKeyDictionary()
"""By module that has a `save_pretrained`, the devices of the ranks that have its weights."""


def whole_state(model: nn.Module) -> dict[str, Any]:
    """The state dict of a model with all values, on the host: what `torch.save` and safetensors take.

    Over ranks all of them call this. Weights travel one by one, and rank 0 needs memory for all of them.

    Args:
        model: a model, distributed or not.

    Returns:
        The state dict; over ranks on rank 0, and an empty one on the others. Tied weights stay tied.

    Raises:
        RankError: another rank was lost, or did not call this.
    """
    state = model.state_dict(keep_vars=True)
    backend = _backend_of(model)
    if backend is None:
        wholes = wholes_of(state)
        made = {id(one): _on_host(one) for one in wholes.values()}
        return {name: made[id(one)] for name, one in wholes.items()}
    ways = backend.wires
    if ways.replica:
        return {}
    with ways.guarded():
        ways.agree_on(len(state), "entries of the model's state dict")
        found = {
            id(value): _gathered(backend, value)
            for value in {id(one): one for one in state.values()}.values()
        }
    return {name: found[id(value)] for name, value in state.items()} if ways.rank == 0 else {}


def _backend_of(model: nn.Module) -> RankDevices | None:
    binding = binding_of(model)
    backend = _in_ranks.get(model) if binding is None else binding.runtime.backend
    return backend if isinstance(backend, RankDevices) else None


def _gathered(backend: RankDevices, value: Any) -> Any:
    """A value on rank 0's host; on other ranks None."""
    ways = backend.wires
    if not isinstance(value, torch.Tensor):
        return value
    source, flat = backend.ranks[backend.place_of(value)], None
    if ways.rank == source:
        flat = value.detach().reshape(-1)
    if source and value.numel():
        if ways.rank == source and flat is not None:
            ways.send(flat.contiguous(), 0, backward=False)
            ways.wait_for_sends()
        elif ways.rank == 0:
            flat = torch.empty(value.numel(), dtype=value.dtype, device=backend.named_device(backend.own))
            ways.wait(ways.receive(flat, source, backward=False), source)
    if ways.rank:
        return None
    if isinstance(value, ElsewhereTensor):
        empty = torch.empty(value.shape, dtype=value.dtype)
        return empty if flat is None else flat.reshape(value.shape).cpu()
    return _on_host(value)


def _on_host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def teach_gathering(model: nn.Module, backend: RankDevices) -> None:
    """Let each `save_pretrained` in a model write the weights of all ranks; rank 0 writes."""
    for module in model.modules():
        kind = type(module)
        owner = next((base for base in kind.__mro__ if "save_pretrained" in vars(base)), None)
        if owner is not None:
            _in_ranks[module] = backend
            original: Any = vars(owner)["save_pretrained"]
            if not hasattr(original, _GATHERS):
                owner.save_pretrained = _gathering(original)  # type: ignore[attr-defined]


def _gathering(original: Any) -> Any:
    @functools.wraps(original)
    def save_pretrained(self: Any, *args: Any, **kwargs: Any) -> Any:
        backend = _backend_of(self)
        if backend is None or kwargs.get("state_dict") is not None:
            return original(self, *args, **kwargs)
        state, done = whole_state(self), None
        with backend.wires.alike():
            if backend.wires.number == 0:
                done = original(self, *args, **{**kwargs, "state_dict": state})
        return done

    setattr(save_pretrained, _GATHERS, True)
    return save_pretrained
