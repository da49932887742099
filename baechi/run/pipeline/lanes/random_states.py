"""Random numbers of microbatches: each draws from a seed of its own, whatever the order of tasks is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function

_SEEDS = 2**62


class RandomStates:
    """The states of the random generators, by microbatch.

    One draw of the caller's generator gives the seeds. So the same seed of the caller gives the same step,
    and a loop that calls `torch.manual_seed` with these before each part draws the same numbers.

    Args:
        backend: the devices.
        microbatches: how many draw; 0 leaves the caller's generator to all of them.
    """

    def __init__(self, backend: AbstractBackend, microbatches: int) -> None:
        self._backend = backend
        self._states: list[Any] = []
        if microbatches:
            with without_dispatch_modes(), without_torch_function():
                seeds = torch.randint(_SEEDS, (microbatches,), device="cpu").tolist()
            self._states = [backend.seeded(seed) for seed in seeds]

    @contextmanager
    def drawing(self, microbatch: int) -> Iterator[None]:
        """Within this context, what is drawn is the microbatch's.

        Args:
            microbatch: its number.
        """
        if not self._states:
            yield
            return
        with without_dispatch_modes(), without_torch_function():
            before = self._backend.random_state()
            self._backend.set_random_state(self._states[microbatch])
        try:
            yield
        finally:
            with without_dispatch_modes(), without_torch_function():
                self._states[microbatch] = self._backend.random_state()
                self._backend.set_random_state(before)
