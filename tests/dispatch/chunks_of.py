"""Schedulers and comparisons that many tests use."""

from typing import Any

import torch
from torch import nn

import baechi
from baechi.torchlib.tensors.pytree import tensors_in


def small(size: int = 3) -> baechi.SimpleScheduler:
    """Chunks of so many rows, on the CPU."""
    return baechi.SimpleScheduler("cpu", size)


def assert_close(found: Any, expected: Any) -> None:
    """The same structure, and the same numbers but for rounding (chunks have other shapes)."""
    assert type(found) is type(expected)
    ours, theirs = list(tensors_in(found)), list(tensors_in(expected))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Two layers, 8 to 4 features."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype).eval()
