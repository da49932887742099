"""Settings of torch that hold in the whole process, also in other threads, and that models set in forward."""

from operator import call
from typing import Any

import torch

from baechi.torchlib.private.kernels import KERNEL_CHOICES, MORE_KERNEL_CHOICES, Choices


def _find_anomalies(mode: bool) -> None:
    torch.set_anomaly_enabled(mode, torch.is_anomaly_check_nan_enabled())


def _look_for_nan(mode: bool) -> None:
    torch.set_anomaly_enabled(torch.is_anomaly_enabled(), mode)


_SETTINGS: Choices = (
    (torch.get_default_dtype, torch.set_default_dtype),
    *KERNEL_CHOICES,
    *MORE_KERNEL_CHOICES,
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    (torch.is_anomaly_enabled, _find_anomalies),
    (torch.is_anomaly_check_nan_enabled, _look_for_nan),
)
_ASKED = tuple([ask for ask, _ in _SETTINGS])


def process_settings() -> tuple[Any, ...]:
    """What holds now; for `set_process_settings`."""
    return (*map(call, _ASKED),)


def set_process_settings(settings: tuple[Any, ...]) -> None:
    """Let settings hold; those that do already are left alone."""
    for (ask, choose), setting in zip(_SETTINGS, settings, strict=True):
        if ask() != setting:
            choose(setting)
