"""Fake tensors: they have a shape, a dtype and a device, and no memory."""

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from baechi.torchlib.private.lookup import kind

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
else:
    FakeTensor = kind("torch._subclasses.fake_tensor.FakeTensor", "know what a call returns before it runs")
    FakeTensorMode = kind(
        "torch._subclasses.fake_tensor.FakeTensorMode", "know what a call returns before it runs"
    )

FAKE_LOG = logging.getLogger("torch._subclasses.fake_tensor")
"""Where torch complains of operators that refuse fake tensors. Under another name, complaints are printed."""


def as_real_as(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """While this is open, new tensors are fake if a tensor is.

    Args:
        tensor: any tensor.
    """
    return tensor.fake_mode if type(tensor) is FakeTensor else nullcontext()
