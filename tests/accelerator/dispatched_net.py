"""A model for dispatch that fails where it is told to; worker processes import it by name."""

import os
import signal
import threading
from typing import ClassVar

import torch
from torch import nn

from accelerator.machine import ToyMachine


class Net(nn.Module):
    """Two layers; it fails on the devices that a test says."""

    fails: ClassVar[dict[int, BaseException]] = {}

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, told: str = "") -> torch.Tensor:
        if told == "raise":
            raise ValueError("told to")
        if told == "exit":
            os._exit(9)
        if told in ("kill", "interrupt"):
            os.kill(os.getpid(), signal.SIGKILL if told == "kill" else signal.SIGINT)
        if told == "hang":
            threading.Event().wait()
        found = self.fails.get(-1 if x.device.index is None else x.device.index)
        if found is not None:
            raise found
        out: torch.Tensor = self.b(torch.tanh(self.a(x)))
        return out


def on_toy() -> nn.Module:
    """A factory for a process in which the device type is not there yet."""
    ToyMachine.get()
    return Net()
