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
    """The states of all generators; each microbatch has one that follows from those of now.

    Args:
        backend: the devices. The host's default generator gives the seeds of all default ones.
        generators: those that the model has.
        microbatches: how many draw.
    """
    with without_dispatch_modes(), without_torch_function():
        before = backend.random_state()
        seeds, after = _drawn(torch.device("cpu"), torch.get_rng_state(), microbatches)
        own = list(map(backend.seeded, seeds))
        move: Callable[[], object] = partial(torch.set_rng_state, after)
        found = [RandomStates(backend.random_state, backend.set_random_state, move, before, own)]
        for generator in generators:
            before = generator.get_state()
            seeds, after = _drawn(generator.device, before, microbatches)
            own = [torch.Generator(generator.device).manual_seed(seed).get_state() for seed in seeds]
            move = partial(generator.set_state, after)
            found.append(RandomStates(generator.get_state, generator.set_state, move, before, own))
    return found


def _drawn(device: torch.device, state: torch.Tensor, count: int) -> tuple[list[int], torch.Tensor]:
    """Seeds that a generator in some state gives, and its state after that."""
    generator = torch.Generator(device)
    generator.set_state(state)
    seeds = torch.randint(_SEEDS, (count,), generator=generator, device=device).tolist()
    return seeds, generator.get_state()


def are_same(one: Any, other: Any) -> bool:
    """Whether two states of all generators give the same numbers.

    Args:
        one: what `RandomStates.now` returned.
        other: the same at another time.
    """
    return all(map(torch.equal, tensors_in(one), tensors_in(other)))
