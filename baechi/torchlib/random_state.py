"""The states of the random generators, kept while something runs that must leave no trace."""

import functools
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_ALONE = ("mps",)
"""Types with one device, whose functions take none."""


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Put the generators of torch (CPU and accelerators of any type), Python and numpy back afterwards."""
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    states = {device: state_of(device) for device in generators()}
    try:
        yield
    finally:
        for device, state in states.items():
            set_state(device, state)
        random.setstate(python)
        if numpy:
            numpy.random.set_state(numpy_state)


def random_states() -> list[bytes | object]:
    """What changes when random numbers are drawn, to be compared: the generators of torch, and Python's."""
    return [*(bytes(state_of(device).cpu().numpy()) for device in generators()), random.getstate()]


def generators() -> list[torch.device]:
    """The devices that have a generator which may have been used: the CPU, and accelerators at work."""
    found = [torch.device("cpu")]
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is not None and getattr(torch.get_device_module(kind), "is_initialized", lambda: True)():
        found += [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]
    return [device for device in found if has_generator(device)]


def has_generator(device: torch.device) -> bool:
    """Whether a device has a random generator whose state can be kept."""
    if device.type in ("cpu", "meta"):
        return device.type == "cpu"
    return hasattr(torch.get_device_module(device), "get_rng_state")


def state_of(device: torch.device) -> torch.Tensor:
    """The state of a device's default generator."""
    if device.type == "cpu":
        return torch.get_rng_state()
    ask = _module(device.type).get_rng_state
    state: torch.Tensor = ask() if device.type in _ALONE else ask(device)
    return state


@functools.cache
def _module(kind: str) -> Any:
    return torch.get_device_module(kind)


def set_state(device: torch.device, state: torch.Tensor) -> None:
    """Set the state of a device's default generator."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    elif device.type in _ALONE:
        _module(device.type).set_rng_state(state)
    else:
        _module(device.type).set_rng_state(state, device)
