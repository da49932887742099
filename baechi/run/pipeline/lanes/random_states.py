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

_SEEDS = 2**62


@dataclass(eq=False, slots=True)
class RandomStates:
    """The states of one generator that the model has, or of all default generators: host's and devices'.

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


def random_states(
    backend: AbstractBackend, generators: Iterable[torch.Generator], microbatches: int
) -> list[RandomStates]:
    """The states of all generators; each microbatch has one that follows from those of now."""
    with without_dispatch_modes(), without_torch_function():
        found, before = [], backend.random_state()
        for generator in (None, *generators):
            device = torch.device("cpu") if generator is None else generator.device
            state = torch.get_rng_state() if generator is None else generator.get_state()
            drawer = torch.Generator(device)
            drawer.set_state(state)
            seeds = torch.randint(_SEEDS, (microbatches,), generator=drawer, device=device).tolist()
            after = drawer.get_state()
            if generator is None:  # the default ones
                own = list(map(backend.seeded, seeds))
                move: Callable[[], object] = partial(torch.set_rng_state, after)
                found.append(RandomStates(backend.random_state, backend.set_random_state, move, before, own))
            else:
                own = [torch.Generator(device).manual_seed(seed).get_state() for seed in seeds]
                move = partial(generator.set_state, after)
                found.append(RandomStates(generator.get_state, generator.set_state, move, state, own))
    return found
