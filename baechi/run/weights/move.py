"""Move weights to their devices, with gradients and optimizer state; Parameters stay the same objects."""

import gc
from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from baechi.backend import AbstractBackend
from baechi.errors import BaechiError
from baechi.torchlib.modules.optimizer_state import state_beside
from baechi.torchlib.private.tensors import storage_address
from baechi.torchlib.tensors.storage import storage_object
from baechi.torchlib.tensors.swap_memory import exchange


def move(
    weights: Mapping[str, torch.Tensor],
    targets: Mapping[str, str],
    backend: AbstractBackend,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Move weights, their gradients and their optimizer state.

    Weights that share storage (tied weights, views) move together, and still share it. Weights on `meta`
    stay there. After an exception (a device out of memory) every weight is where it was.
    """
    weights = {name: weight for name, weight in weights.items() if not weight.is_meta}
    torch.clear_autocast_cache()  # cached casts of weights lie on the old devices
    grads = {name: weight.grad for name, weight in weights.items() if weight.is_leaf}
    moved: list[tuple[torch.Tensor, torch.Tensor]] = []
    for place, tensors in _by_storage(weights, targets):
        moved += zip(tensors, backend.move_weights(tensors, place), strict=True)
    _refuse_parallel([tensor for tensor, data in moved if tensor.device != data.device])
    for tensor, data in moved:
        _put(tensor, data)
    for name, weight in weights.items():
        grad = grads.get(name)
        beside = state_beside(optimizer, weight) if optimizer is not None else []
        companions = [] if grad is None else [grad]
        companions += [value for value in beside if value is not grad]
        for tensor, data in zip(companions, backend.move_weights(companions, targets[name]), strict=True):
            _put(tensor, data)
        if weight.is_leaf and weight.grad is not grad:
            weight.grad = grad


def _refuse_parallel(tensors: Iterable[torch.Tensor]) -> None:
    """Refuse weights that a DistributedDataParallel wraps: it relies on the memory that they have now."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    weights = {id(tensor) for tensor in tensors}
    for wrapper in gc.get_objects() if weights else ():
        if type(wrapper) is DistributedDataParallel and any(id(p) in weights for p in wrapper.parameters()):
            raise BaechiError(
                "weights of this model belong to a DistributedDataParallel already, which would no longer "
                "see their gradients on another device: distribute the model first, then wrap it"
            )


def _by_storage(
    weights: Mapping[str, torch.Tensor], targets: Mapping[str, str]
) -> list[tuple[str, list[torch.Tensor]]]:
    """Groups of weights that share storage, with the device that each group goes to."""
    groups: dict[int, tuple[str, dict[int, torch.Tensor]]] = {}
    for name, tensor in weights.items():
        _, members = groups.setdefault(id(storage_object(tensor)), (targets[name], {}))
        members[id(tensor)] = tensor
    return [(place, list(members.values())) for place, members in groups.values()]


def _put(tensor: torch.Tensor, data: torch.Tensor) -> None:
    if tensor.layout != torch.strided or not _same_memory(tensor, data):
        exchange(tensor, data)


def _same_memory(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    one, other = (storage_address(t.untyped_storage()) for t in (tensor, data))
    return one == other and tensor.storage_offset() == data.storage_offset()


def flatten_recurrent(model: nn.Module) -> None:
    """Lay the weights of recurrent layers out in one block again, as cuDNN requires."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
