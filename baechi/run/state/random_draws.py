"""Random numbers of what launches later: the same as if it had run where the code reached it.

When a layer that draws must wait, the state of its device's generator is kept for it, and the
generator goes on as if the layer had drawn: its random operations are repeated on empty tensors of the
same shapes. So a model drops the same units in any order of launches.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from baechi.backend import unwatched
from baechi.run.state.draws import Draw
from baechi.run.state.meta import Meta
from baechi.torchlib.private.modes import without_torch_function
from baechi.torchlib.random_state import set_state, state_of


def drawing_as_if_now(
    draws: Iterable[Draw], run: Callable[[], Any], draw_at: Callable[[torch.device], None]
) -> Callable[[], Any]:
    """A function that runs later with the random numbers of now.

    Args:
        draws: what it will draw.
        run: the function.
        draw_at: lets a device's generator go on where the others' ended.

    Returns:
        The function, with the generators' states around it.
    """
    draws = list(draws)
    states: dict[torch.device, torch.Tensor] = {}
    with unwatched(), torch.no_grad(), without_torch_function():
        for draw in draws:
            draw_at(draw.device)
            states.setdefault(draw.device, state_of(draw.device))
            draw.func(*map(_empty, draw.args), **{key: _empty(value) for key, value in draw.kwargs.items()})

    def later() -> Any:
        now = {}
        for device, state in states.items():
            draw_at(device)
            now[device] = state_of(device)
            set_state(device, state)
        try:
            return run()
        finally:
            for device, state in now.items():
                set_state(device, state)

    return later


def _empty(value: Any) -> Any:
    if not isinstance(value, Meta):
        return value
    return torch.empty_strided(value.size, value.stride, dtype=value.dtype, device=value.device)
