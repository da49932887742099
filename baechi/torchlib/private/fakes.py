"""Fake tensors: they have a shape, a dtype and a device, and no memory."""

import logging
from collections.abc import Sized
from typing import TYPE_CHECKING

from baechi.torchlib.private.lookup import kind, named

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
else:
    FakeTensor = kind("torch._subclasses.fake_tensor.FakeTensor", "know what a call returns before it runs")
    FakeTensorMode = kind(
        "torch._subclasses.fake_tensor.FakeTensorMode", "know what a call returns before it runs"
    )

_purpose = "keep what torch remembers of fake tensors small"
FAKE_CACHE: Sized = named("torch._subclasses.fake_tensor.FakeTensorMode.cache", _purpose, ())
"""What torch remembers of operators on fake tensors, for the whole process; empty where it is elsewhere."""

FAKE_LOG = logging.getLogger("torch._subclasses.fake_tensor")
"""Where torch complains of operators that refuse fake tensors. Under another name, complaints are printed."""
