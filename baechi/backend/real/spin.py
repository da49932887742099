"""Keeps a device busy for some time, so that it is behind the host: what comes next is measured as it is.

host     |spin|start|a|b|c|end|                 the device begins when the host has asked for all of it,
device       |~~~~~ spin ~~~~~|start|a|b|c|end|     so between the events it never waits for the host
"""

from contextlib import AbstractContextManager
from math import ceil
from typing import Any, Protocol

import torch

from baechi.torchlib.private.devices import sleep_kernel

_CYCLES = 1000  # of one unit, where the device has a kernel that waits
_SIDE = 1024  # of the matrices whose product is one unit, where it has none
_TRIES, _STEADY = 20, 0.05  # clocks rise when an idle device gets work: until two times are that close

_units_per_s: dict[torch.device, float] = {}


class Events(Protocol):
    """What of a driver is needed here."""

    def current(self, device: torch.device) -> AbstractContextManager[None]: ...

    def timed_event(self, device: torch.device) -> Any: ...

    def elapsed_s(self, first: Any, last: Any) -> float: ...

    def synchronize(self, device: torch.device) -> None: ...


def spin(driver: Events, device: torch.device, seconds: float) -> None:
    """Put work on the current stream of a device that takes about some seconds."""
    with driver.current(device):
        if device not in _units_per_s:
            _units_per_s[device] = _rate(driver, device)
        _work(device, ceil(seconds * _units_per_s[device]))


def _rate(driver: Events, device: torch.device) -> float:
    """Units of work that a device does in a second."""
    units = 1000 if sleep_kernel(device.type) else 8
    _work(device, 1)
    before_s = 0.0
    for _ in range(_TRIES):
        start = driver.timed_event(device)
        _work(device, units)
        end = driver.timed_event(device)
        driver.synchronize(device)
        taken_s = max(driver.elapsed_s(start, end), 1e-9)
        if abs(taken_s - before_s) <= _STEADY * taken_s:
            break
        before_s = taken_s
    return units / taken_s


def _work(device: torch.device, units: int) -> None:
    sleep = sleep_kernel(device.type)
    if sleep is not None:
        sleep(units * _CYCLES)
        return
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        left = torch.empty(_SIDE, _SIDE, device=device)
        out = torch.empty_like(left)
        for _ in range(units):
            torch.mm(left, left, out=out)
