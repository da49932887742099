"""What microbatches must not see of each other: what they write to modules, what they draw, what they set.

Settings of the process that the model's code sets are the microbatch's own:

    lane 0   with sdpa_kernel(MATH): ─┐ stops               ─▶ goes on with MATH, leaves it
    lane 1                            └▶ the caller's kernels

Without this the second microbatch would take what the first one set for the caller's, and set that when it
leaves its own.
"""

from collections.abc import Sequence

import torch

from baechi.run.pipeline.lanes.own_state import OwnState
from baechi.run.pipeline.lanes.random_states import RandomStates
from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function
from baechi.torchlib.process_settings import process_settings, set_process_settings
from baechi.torchlib.tensors.pytree import tensors_in


class KeptApart:
    """The world as each microbatch knows it, and as the caller does.

    Whatever is entered and not left again, `put_back` gives the caller's world back. It may be called at any
    time, and again: so it does not matter where an error, or an exception of a signal handler, came.

    Args:
        own: what each microbatch wrote to modules.
        draws: the states of each random generator, or of several.
        microbatches: how many.
    """

    def __init__(self, own: OwnState, draws: Sequence[RandomStates], microbatches: int) -> None:
        self.own = own
        self._draws = draws
        self._callers = process_settings()
        self._settings = [self._callers] * microbatches
        self._is_settled = False

    def enter(self, microbatch: int, run: int | None) -> None:
        """From now on the world is a microbatch's."""
        if run is not None:
            if self._settings[microbatch] != self._callers:  # which hold
                set_process_settings(self._settings[microbatch])
            with without_dispatch_modes(), without_torch_function():
                for states in self._draws:
                    states.set(states.own[microbatch])
        self.own.enter(microbatch, run)

    def leave(self, microbatch: int, run: int | None) -> None:
        """From now on it is the caller's."""
        self.own.leave(microbatch, run)
        if run is not None:
            with without_dispatch_modes(), without_torch_function():
                for states in self._draws:
                    now = states.now()
                    if not states.have_drawn:
                        pairs = tensors_in(states.own[microbatch]), tensors_in(now)
                        states.have_drawn = not all(map(torch.equal, *pairs))
                    states.own[microbatch] = now
                    states.set(states.before)
            self._settings[microbatch] = settings = process_settings()
            if settings != self._callers:
                set_process_settings(self._callers)

    def settle(self) -> None:
        """Forward is over: what the last microbatch wrote and set stays, and generators move."""
        self.own.finish()
        if self._settings[-1] != self._callers:
            set_process_settings(self._settings[-1])
        with without_dispatch_modes(), without_torch_function():
            for states in self._draws:
                if states.have_drawn:
                    states.move()
        self._is_settled = True

    def put_back(self) -> None:
        """What was run failed: all is as before it."""
        self.own.put_back()
        if not self._is_settled:
            set_process_settings(self._callers)
            with without_dispatch_modes(), without_torch_function():
                for states in self._draws:
                    states.set(states.before)
