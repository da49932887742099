"""Random numbers of several devices, as if they had one generator.

    code        dropout on cuda:0      dropout on cuda:1           the step is over
    generator   draws on cuda:0 ─────▶ goes to cuda:1, draws ────▶ goes back to cuda:0

Each device has a generator of its own, so dropout on two devices would drop other units than on one. When
code moves to another device, the state of the generator that drew last is copied there first. Between
steps the first device's generator counts, as for a model that lies there whole.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function
from baechi.torchlib.private.transforms import without_transforms
from baechi.torchlib.random_state import set_state, state_of


class OneGenerator:
    """Where the next random number comes from.

    Args:
        devices: those that have generators, of one type; the first one's counts between steps.

    Attributes:
        first: the first of them; None if there are none.
        holder: the one that drew last.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = frozenset(devices) if len(devices) > 1 else frozenset()
        self.first = devices[0] if devices else None
        self.holder = self.first
        self._handed: torch.Tensor | None = None
        self._same: set[torch.device] = set()
        self._in_step = False

    def bring(self, device: torch.device | None) -> None:
        """Give a device's generator the state of the one that drew last."""
        device = self.first if device is None else device
        if device == self.holder or device not in self._devices:
            return
        assert self.holder is not None
        with without_transforms(), without_dispatch_modes(), without_torch_function():
            state = state_of(self.holder)
            if self._handed is None or not torch.equal(state, self._handed):
                self._handed, self._same = state, {self.holder}
            if device not in self._same:
                set_state(device, state)
                self._same.add(device)
        self.holder = device

    def knows(self, device: torch.device) -> bool:
        """Whether a device is one of several whose generators are kept alike."""
        return device in self._devices

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """A step starts from the first device's generator, and returns the state to it at the end."""
        self.holder, self._handed, self._in_step = self.first, None, True
        try:
            yield
        finally:
            self.bring(None)
            self._in_step = False

    @contextmanager
    def again(self) -> Iterator[None]:
        """While code runs again with restored states: the first device's generator counts at the start."""
        before = self.holder
        self.holder, self._handed = self.first, None
        try:
            yield
        finally:
            self.holder, self._handed = before, None

    def held_by(self, device: torch.device | None) -> None:
        """The states of all devices were set: one of them drew last."""
        self.holder, self._handed = device, None

    def spread(self) -> None:
        """In a step, copy the current state to all devices. Outside of one, the first device has it."""
        for device in self._devices if self._in_step else ():
            self.bring(device)
