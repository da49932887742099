"""Where random numbers go on: the generators of the CPU and of devices; over ranks those of rank 0."""

from collections.abc import Mapping

import torch
from torch import nn

from baechi.backend.ranks.devices import RankDevices
from baechi.run.binding import binding_of
from baechi.torchlib.random_state import generators, set_state, state_of


def random_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The states of generators, by device; over ranks a device's is that from which the model draws."""
    return {name: state_of(device) for name, device in _generators(model).items()}


def set_random_state(model: nn.Module, states: Mapping[str, torch.Tensor]) -> None:
    """Put states back, of devices that are here."""
    for name, device in _generators(model).items():
        if name in states:
            set_state(device, states[name].cpu())


def _generators(model: nn.Module) -> dict[str, torch.device]:
    """Generators by the name that a file has for them: over ranks each device is the first of its kind."""
    binding = binding_of(model)
    backend = None if binding is None else binding.runtime.backend
    if isinstance(backend, RankDevices):
        return {"cpu": torch.device("cpu"), **{f"{one.type}:0": one for one in backend.generators()}}
    return {str(device): device for device in generators()}
