"""Random numbers of microbatches: each draws from a seed of its own, whatever the order of tasks is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function
from baechi.torchlib.tensors.pytree import tensors_in

_SEEDS = 2**62


class RandomStates:
    """The states of the random generators, by microbatch.

    One draw of the caller's generator gives the seeds. So the same seed of the caller gives the same step,
    and a loop that calls `torch.manual_seed` with these before each part draws the same numbers. The caller's
    generator moves by that draw if any microbatch draws, and stays as it is if none does.

    Args:
        backend: the devices.
        microbatches: how many draw.
    """

    def __init__(self, backend: AbstractBackend, microbatches: int) -> None:
        self._backend = backend
        self._have_drawn = False
        with without_dispatch_modes(), without_torch_function(), torch.random.fork_rng(devices=[]):
            seeds = torch.randint(_SEEDS, (microbatches,), device="cpu").tolist()
            self._after_draw = torch.get_rng_state()
        self._states = [backend.seeded(seed) for seed in seeds]

    @contextmanager
    def drawing(self, microbatch: int) -> Iterator[None]:
        """Within this context, what is drawn is the microbatch's.

        Args:
            microbatch: its number.
        """
        own = self._states[microbatch]
        with without_dispatch_modes(), without_torch_function():
            callers = self._backend.random_state()
            self._backend.set_random_state(own)
        try:
            yield
        finally:
            with without_dispatch_modes(), without_torch_function():
                self._states[microbatch] = now = self._backend.random_state()
                self._have_drawn = self._have_drawn or not _same(own, now)
                self._backend.set_random_state(callers)

    def settle(self) -> None:
        """Move the caller's generator if any microbatch has drawn."""
        if self._have_drawn:
            with without_dispatch_modes(), without_torch_function():
                torch.set_rng_state(self._after_draw)


def _same(one: Any, other: Any) -> bool:
    """Whether two states of all generators give the same numbers."""
    return all(map(torch.equal, tensors_in(one), tensors_in(other)))
