"""Autocast for an accelerator, as capturing and measuring on the CPU have to see it."""

import functools
from contextlib import AbstractContextManager, nullcontext

import torch

from baechi.torchlib.private.autocast import casts_anywhere as casts_anywhere

_ACCELERATORS = ("cuda", "xpu", "mtia", "hpu")


@functools.cache
def autocast_types() -> tuple[str, ...]:
    """The types of devices for which autocast may be on here: the CPU, CUDA's, this machine's."""
    here = torch.accelerator.current_accelerator()
    return tuple(dict.fromkeys(["cpu", "cuda", *([] if here is None else [here.type])]))


@functools.cache
def no_casts() -> tuple[tuple[bool, ...], tuple[torch.dtype | None, ...]]:
    """By device type, that autocast is off, and that it has no dtype."""
    kinds = autocast_types()
    return (False,) * len(kinds), (None,) * len(kinds)


def autocast_everywhere() -> AbstractContextManager[object]:
    """Cast on the CPU, too, to the dtype that the caller's autocast has for an accelerator.

    A model is captured with tensors of the CPU; there autocast for accelerators does nothing. The
    lists of operators that are cast differ little between the two.
    """
    if torch.is_autocast_enabled("cpu"):
        return nullcontext()
    for kind in dict.fromkeys((*_ACCELERATORS, *autocast_types()[1:])):
        if torch.is_autocast_enabled(kind):
            return torch.autocast("cpu", dtype=torch.get_autocast_dtype(kind))
    return nullcontext()
