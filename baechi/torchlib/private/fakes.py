"""Fake tensors: they have a shape, a dtype and a device, and no memory."""

import logging
from typing import TYPE_CHECKING

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
