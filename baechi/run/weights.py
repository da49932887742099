"""Moving weights to their devices: the same Parameter objects, with all that hangs on them."""

from collections.abc import Mapping

import torch
from torch import nn

from baechi.backend import AbstractBackend
from baechi.backend.marks import carrier
from baechi.backend.optimizer_state import state_beside


def move(
    weights: Mapping[str, torch.Tensor],
    homes: Mapping[str, str],
    backend: AbstractBackend,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Move weights, their gradients and their optimizer state.

    Weights that share storage (ties, views) move together and go on sharing it. What is on `meta` stays
    there. After an exception (a device out of memory) every weight is back where it was.

    Args:
        weights: parameters and buffers by name.
        homes: device by name.
        backend: the devices.
        optimizer: an optimizer whose existing state moves with its parameters.
    """
    weights = {name: weight for name, weight in weights.items() if not weight.is_meta}
    torch.clear_autocast_cache()  # casts of weights lie where those lay
    before = {id(tensor): (tensor, tensor.data) for tensor in weights.values()}
    try:
        for place, tensors in _by_storage(weights, homes):
            for tensor, data in zip(tensors, backend.move_weights(tensors, place), strict=True):
                _put(tensor, data)
    except BaseException:
        for tensor, data in before.values():
            _put(tensor, data)
        raise
    for name, weight in weights.items():
        beside = state_beside(optimizer, weight) if optimizer is not None else []
        hanging = [] if weight.grad is None else [weight.grad]
        hanging += [value for value in beside if value is not weight.grad]
        for tensor, data in zip(hanging, backend.move_weights(hanging, homes[name]), strict=True):
            _put(tensor, data)


def _by_storage(
    weights: Mapping[str, torch.Tensor], homes: Mapping[str, str]
) -> list[tuple[str, list[torch.Tensor]]]:
    """Weights that share storage, together: with the device that they go to."""
    groups: dict[int, tuple[str, dict[int, torch.Tensor]]] = {}
    for name, tensor in weights.items():
        _, members = groups.setdefault(id(carrier(tensor)), (homes[name], {}))
        members[id(tensor)] = tensor
    return [(place, list(members.values())) for place, members in groups.values()]


def _put(tensor: torch.Tensor, data: torch.Tensor) -> None:
    if tensor.layout != torch.strided or tensor.data_ptr() != data.data_ptr() or tensor.device != data.device:
        tensor.data = data


def flatten_recurrent(model: nn.Module) -> None:
    """Lay the weights of recurrent layers out in one block again, as cuDNN wants them."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
