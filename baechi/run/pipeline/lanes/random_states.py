"""Random numbers of microbatches: each draws from a seed of its own, whatever the order of tasks is.

    the caller's generator, before the step ─▶ one draw ─▶ seed 0 ─▶ microbatch 0
                                                       └─▶ seed 1 ─▶ microbatch 1

So the same state before the step gives the same step, and a loop that calls `torch.manual_seed` with these
seeds before each part draws the same numbers. A generator moves by that draw if any microbatch draws from it,
and stays as it is if none does. The same holds of a `torch.Generator` that the model has.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function
from baechi.torchlib.tensors.pytree import tensors_in

_SEEDS = 2**62


class RandomStates:
    """The states of the random generators, by microbatch. The host's generator of the caller gives its seeds.

    Args:
        backend: the devices.
        generators: those that the model has.
        microbatches: how many draw.
    """

    def __init__(
        self, backend: AbstractBackend, generators: Iterable[torch.Generator], microbatches: int
    ) -> None:
        with without_dispatch_modes(), without_torch_function():
            before = backend.random_state()
            seeds, after = _drawn(torch.device("cpu"), torch.get_rng_state(), microbatches)
            own = list(map(backend.seeded, seeds))
            move: Callable[[], object] = partial(torch.set_rng_state, after)
            self._all = [_States(backend.random_state, backend.set_random_state, move, before, own)]
            for generator in generators:
                before = generator.get_state()
                seeds, after = _drawn(generator.device, before, microbatches)
                own = [torch.Generator(generator.device).manual_seed(seed).get_state() for seed in seeds]
                move = partial(generator.set_state, after)
                self._all.append(_States(generator.get_state, generator.set_state, move, before, own))

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


@dataclass(eq=False, slots=True)
class _States:
    """Those of one generator that the model has, or of all default generators: of the host and the devices.

    Args:
        now: the state now.
        set: sets it.
        move: sets it to the one after the seeds were drawn.
        before: before the step.
        own: by microbatch.
        have_drawn: whether any microbatch has drawn.
    """

    now: Callable[[], Any]
    set: Callable[[Any], object]
    move: Callable[[], object]
    before: Any
    own: list[Any]
    have_drawn: bool = False


def _drawn(device: torch.device, state: torch.Tensor, count: int) -> tuple[list[int], torch.Tensor]:
    """Seeds that a generator in some state gives, and its state after that."""
    generator = torch.Generator(device)
    generator.set_state(state)
    seeds = torch.randint(_SEEDS, (count,), generator=generator, device=device).tolist()
    return seeds, generator.get_state()


def _same(one: Any, other: Any) -> bool:
    """Whether two states of all generators give the same numbers."""
    return all(map(torch.equal, tensors_in(one), tensors_in(other)))
