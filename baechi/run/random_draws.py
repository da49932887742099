"""Random numbers of what launches later: the same as if it had run where the code reached it.

When a layer that draws must wait, the generator's state is kept for it, and the generator goes on as
if the layer had drawn: its random operations are repeated on empty tensors of the same shapes. So a
model drops the same units on one device, on several, in any order of launches.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from baechi.backend import unwatched
from baechi.run.draws import Draw
from baechi.run.meta import Meta


def drawing_as_if_now(draws: Iterable[Draw], run: Callable[[], Any]) -> Callable[[], Any]:
    """A function that runs later with the random numbers of now.

    Args:
        draws: what it will draw.
        run: the function.

    Returns:
        The function, with the generator's state around it.
    """
    state = torch.get_rng_state()
    with unwatched(), torch.no_grad(), torch._C.DisableTorchFunction():
        for draw in draws:
            draw.func(*map(_empty, draw.args), **{key: _empty(value) for key, value in draw.kwargs.items()})

    def later() -> Any:
        now = torch.get_rng_state()
        torch.set_rng_state(state)
        try:
            return run()
        finally:
            torch.set_rng_state(now)

    return later


def _empty(value: Any) -> Any:
    if not isinstance(value, Meta):
        return value
    return torch.empty_strided(value.size, value.stride, dtype=value.dtype, device=value.device)
