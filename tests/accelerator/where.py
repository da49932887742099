"""On which accelerator tests run: the test accelerator, or the one whose type `BAECHI_DEVICE` names."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from accelerator.machine import COUNT
from baechi.torchlib.tensors.pytree import map_tensors

KIND = os.environ.get("BAECHI_DEVICE", "toy")
IS_TOY = KIND == "toy"
if not IS_TOY:  # cuBLAS computes the same on every stream
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

HERE = f"{KIND}:0"
"""The device on which the plain model runs."""


def why_not_here() -> str:
    """Why no test can run on the accelerator that was asked for; empty if they can."""
    if IS_TOY:
        return ""  # the folder's fixture builds it, or skips
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type != KIND:
        return f"BAECHI_DEVICE asks for {KIND}, and torch sees {found}"
    return ""


def names() -> tuple[str, ...]:
    """The devices that are here."""
    count = COUNT if IS_TOY else 0 if why_not_here() else torch.accelerator.device_count()
    return tuple(f"{KIND}:{index}" for index in range(count))


def at(value: Any, place: str = HERE) -> Any:
    """A value, all its tensors at a place."""
    return map_tensors(lambda tensor: tensor.to(place), value)


def moved(model: nn.Module, place: str = HERE) -> nn.Module:
    """A plain model, moved; what was tied stays tied."""
    with _swapping():
        return model.to(place)


def undropped(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Build models that drop nothing: each device draws by a generator of its own.

    Args:
        build: makes a model, with or without a config.
    """

    def built() -> nn.Module:
        model = build()
        for module in model.modules():
            drops = isinstance(module, nn.modules.dropout._DropoutNd)
            for table in (vars(module), vars(getattr(module, "config", nn.Identity()))):
                for key, value in table.items():
                    if isinstance(value, float) and ("drop" in key or (drops and key == "p")):
                        table[key] = 0.0
        return model

    return built


@contextmanager
def _swapping() -> Iterator[None]:
    """The data of a weight cannot be set to memory of a type like toy's: weights are swapped whole."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(IS_TOY)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
