"""What of a sharded tensor is written to a file: one plain tensor on the host.

A tensor that is written under several names (a tie) is one storage in the file, as of a plain tensor.
"""

import functools
from collections.abc import Mapping
from inspect import signature
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from baechi.torchlib.private.tensors import write_count
from baechi.torchlib.shards.weight import ShardedWeight

_SAVES = "_baechi_saves_shards"
"""The mark on a `save_pretrained` that takes sharded weights."""

_written: "WeakValueDictionary[tuple[Any, ...], torch.UntypedStorage]" = WeakValueDictionary()
"""By shards and their versions: the storage on the host, as long as what writes the file holds it."""


def written_form(tensor: ShardedWeight) -> torch.Tensor:
    """The whole on the host; a `Parameter` if the tensor is one."""
    key = tuple([(id(shard.untyped_storage()), write_count(shard)) for shard in tensor.shards])
    storage = _written.get(key)
    if storage is None:
        whole = tensor.on_host()
        _written[key] = whole.untyped_storage()
    else:
        whole = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tensor.shape, tensor.stride())
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(whole, tensor.requires_grad)
    return whole.requires_grad_(tensor.requires_grad)


def teach_saving(kind: type) -> None:
    """Let a class's `save_pretrained` write sharded weights as whole ones; done once a class.

    It reads tensors' memory, of which shards have none that is one. So it is given wholes on the host. Other
    weights are handed on as they are.
    """
    owner = next((base for base in kind.__mro__ if "save_pretrained" in vars(base)), None)
    original: Any = None if owner is None else vars(owner)["save_pretrained"]
    if owner is None or hasattr(original, _SAVES) or "state_dict" not in signature(original).parameters:
        return

    @functools.wraps(original)
    def save_pretrained(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature(original).bind(self, *args, **kwargs)
        state = given.arguments.get("state_dict")
        if state is None and any(isinstance(weight, ShardedWeight) for weight in self.parameters()):
            state = self.state_dict(keep_vars=True)
        if state is not None:
            given.arguments["state_dict"] = wholes_of(state)
        return original(*given.args, **given.kwargs)

    setattr(save_pretrained, _SAVES, True)
    owner.save_pretrained = save_pretrained  # type: ignore[attr-defined]


def wholes_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict with wholes on the host in place of sharded tensors; ties stay ties."""
    made: dict[Any, torch.Tensor] = {}
    return {
        name: made.setdefault(tuple(map(id, value.shards)), value.on_host())
        if isinstance(value, ShardedWeight)
        else value.detach()
        if isinstance(value, torch.Tensor)
        else value
        for name, value in state.items()
    }
