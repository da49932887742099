"""Give a call that launches later the random numbers that it would have drawn when the code reached it.

If a layer with random operations must wait, the state of its device's generator is saved for it. Then the
generator is advanced as if the layer had run: its random operations are repeated on empty tensors of the
same shapes. So dropout drops the same units in any order of launches.
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
    """Wrap a function so that it runs later with the random numbers of now.

    Args:
        draws: its random operations.
        run: the function.
        draw_at: lets a device's generator continue from the state that the others have reached.

    Returns:
        The function; it restores the saved generator states while it runs.
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
