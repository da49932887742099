"""Random numbers of microbatches: each draws from a seed of its own, whatever the order of tasks is.

    the caller's generator, before the step ─▶ one draw ─▶ seed 0 ─▶ microbatch 0
                                                       └─▶ seed 1 ─▶ microbatch 1

So the same state before the step gives the same step, and a loop that calls `torch.manual_seed` with these
seeds before each part draws the same numbers. A generator moves by that draw if any microbatch draws from it,
and stays as it is if none does. The same holds of a `torch.Generator` that the model has.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function
from baechi.torchlib.tensors.pytree import tensors_in

_SEEDS = 2**62


class RandomStates:
    """The states of the random generators, by microbatch.

    Args:
        backend: the devices.
        generators: those that the model has.
        microbatches: how many draw.
    """

    def __init__(
        self, backend: AbstractBackend, generators: Iterable[torch.Generator], microbatches: int
    ) -> None:
        with without_dispatch_modes(), without_torch_function():
            self._all: list[_States] = [_OfCaller(backend), *map(_OfModel, generators)]
            for states in self._all:
                states.draw_seeds(microbatches)

    def enter(self, microbatch: int) -> None:
        """From now on, what is drawn is a microbatch's.

        Args:
            microbatch: its number.
        """
        with without_dispatch_modes(), without_torch_function():
            for states in self._all:
                states.set(states.own[microbatch])

    def leave(self, microbatch: int) -> None:
        """From now on, what is drawn is the caller's.

        Args:
            microbatch: the one that was entered.
        """
        with without_dispatch_modes(), without_torch_function():
            for states in self._all:
                now = states.now()
                states.have_drawn = states.have_drawn or not _same(states.own[microbatch], now)
                states.own[microbatch] = now
                states.set(states.before)

    def settle(self) -> None:
        """The step is over: move the generators from which any microbatch has drawn."""
        with without_dispatch_modes(), without_torch_function():
            for states in self._all:
                if states.have_drawn:
                    states.move()

    def put_back(self) -> None:
        """The step failed: the generators are as they were before it."""
        with without_dispatch_modes(), without_torch_function():
            for states in self._all:
                if not _same(states.now(), states.before):
                    states.set(states.before)


class _States(ABC):
    """Those of one generator, or of all of the caller's.

    Attributes:
        before: before the step.
        own: by microbatch.
        have_drawn: whether any microbatch has drawn.
    """

    def __init__(self) -> None:
        self.before = self.now()
        self.own: list[Any] = []
        self.have_drawn = False

    @abstractmethod
    def now(self) -> Any:
        """The state now."""

    @abstractmethod
    def set(self, state: Any) -> None:
        """Set it."""

    @abstractmethod
    def move(self) -> None:
        """Set it to the one after the seeds were drawn."""

    @abstractmethod
    def draw_seeds(self, count: int) -> None:
        """Give each microbatch a state; the generator stays as it is."""


class _OfCaller(_States):
    """The default generators of the host and of all devices. The host's gives the seeds.

    Args:
        backend: the devices.
    """

    def __init__(self, backend: AbstractBackend) -> None:
        self._backend = backend
        super().__init__()

    def now(self) -> Any:
        return self._backend.random_state()

    def set(self, state: Any) -> None:
        self._backend.set_random_state(state)

    def move(self) -> None:
        torch.set_rng_state(self._after)

    def draw_seeds(self, count: int) -> None:
        seeds, self._after = _drawn(torch.device("cpu"), torch.get_rng_state(), count)
        self.own = list(map(self._backend.seeded, seeds))


class _OfModel(_States):
    """One that the model has.

    Args:
        generator: it.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        super().__init__()

    def now(self) -> Any:
        return self._generator.get_state()

    def set(self, state: Any) -> None:
        self._generator.set_state(state)

    def move(self) -> None:
        self._generator.set_state(self._after)

    def draw_seeds(self, count: int) -> None:
        device = self._generator.device
        seeds, self._after = _drawn(device, self.before, count)
        self.own = [torch.Generator(device).manual_seed(seed).get_state() for seed in seeds]


def _drawn(device: torch.device, state: torch.Tensor, count: int) -> tuple[list[int], torch.Tensor]:
    """Seeds that a generator in some state gives, and its state after that."""
    generator = torch.Generator(device)
    generator.set_state(state)
    seeds = torch.randint(_SEEDS, (count,), generator=generator, device=device).tolist()
    return seeds, generator.get_state()


def _same(one: Any, other: Any) -> bool:
    """Whether two states of all generators give the same numbers."""
    return all(map(torch.equal, tensors_in(one), tensors_in(other)))
