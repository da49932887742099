"""Which tensor's `device` the model's code read.

While a model is captured all tensors have one device, so its value does not tell. But each question
gets an object of its own as its answer, and that is recognized when it comes back:

    device = x.device                    noted: this object is x's
    torch.arange(9, device=device)       it lies where x does
"""

from typing import Any

import torch

from baechi.capture.watch.trace import Storage


class Devices:
    """The device objects handed out so far. They are kept alive, so that no `id` is used twice."""

    def __init__(self) -> None:
        self._answers: dict[int, tuple[torch.device, Storage]] = {}

    def answer(self, device: torch.device, storage: Storage) -> torch.device:
        """A new device object that `owner` recognizes."""
        own = torch.device(device.type) if device.index is None else torch.device(device.type, device.index)
        self._answers[id(own)] = own, storage
        return own

    def owner(self, device: Any) -> Storage | None:
        """The memory of the tensor whose device this is; None if the code did not read it from a tensor."""
        _, storage = self._answers.get(id(device), (None, None))
        return storage
