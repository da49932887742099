"""A lane: a thread in which one microbatch walks through the model's code, run by run.

    executor   grant run 0 ─▶ wait ...........▶ grant run 0 of the next ─▶ ...  grant run 1 ─▶ wait
    lane 0                    ─▶ code of run 0 │ stops before run 1                        ─▶ code of run 1

One thread runs at a time: the executor, or a lane. So a step is reproducible, and the model's code needs
no locks. The settings of the caller's thread (gradients, autocast, modes) hold in the lane, too.

An exception of a signal handler (Ctrl-C, a timeout) may come between any two lines of the executor's thread,
also while a lane runs. So each turn has flags of its own, and the lane goes on to the next turn's by itself:

    executor   takes the turn that is there, lets it begin, waits until it is over; or does so again
    lane       takes the turn's flags, puts the next turn there, runs, says that the turn is over

Whatever was interrupted, the turn that is there leads to an end of the lane. When its code is over, the lane
also says so for the turn that does not come.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

import torch

from baechi.backend import AbstractBackend
from baechi.backend.flag import Flag
from baechi.run.state.caller_state import CallerState
from baechi.torchlib.private.autograd import pop_saved_hooks, push_saved_hooks, top_saved_hooks
from baechi.torchlib.private.modes import (
    dispatch_modes,
    function_modes,
    pop_dispatch_mode,
    pop_function_mode,
    push_dispatch_mode,
    push_function_mode,
)

ALL_RUNS = 1 << 60
"""Grants the whole code, also what comes after the last run."""


class _Dropped(BaseException):
    """Ends a lane whose step failed elsewhere: it unwinds the model's code."""


class _Turn(NamedTuple):
    """One stretch of a lane's code.

    Args:
        begins: set by the executor.
        is_over: set by the lane.
    """

    begins: Flag
    is_over: Flag


class CallerSettings:
    """What holds in the calling thread, to be entered in another one."""

    def __init__(self) -> None:
        self._state = CallerState.now()
        self._function_modes = list(function_modes())
        self._dispatch_modes = list(dispatch_modes())
        self._intra_op_threads = torch.get_num_threads()
        hooks: Any = top_saved_hooks(True)
        self._saved_hooks = [] if hooks is None else [hooks]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Within this context they hold in this thread."""
        torch.set_num_threads(self._intra_op_threads)  # the setting is per thread
        with self._state.restored(), ExitStack() as stack:
            torch.autocast_increment_nesting()  # else leaving autocast here clears the shared cache of casts
            stack.callback(torch.autocast_decrement_nesting)
            there = list(dispatch_modes())
            for mode in self._dispatch_modes:
                if not any(
                    mode is other for other in there
                ):  # an emulated cluster watches its threads itself
                    push_dispatch_mode(mode)
                    stack.callback(pop_dispatch_mode)
            for mode in self._function_modes:
                push_function_mode(mode)
                stack.callback(pop_function_mode)
            for pack, unpack in self._saved_hooks:
                push_saved_hooks(pack, unpack)
                stack.callback(pop_saved_hooks)
            yield


class Lane:
    """One microbatch's thread.

    Args:
        backend: starts it, and lets it wait.
        number: the microbatch.
        settings: of the caller.

    Attributes:
        granted: the last run that is granted.
        is_over: whether its code is over, or failed.
        result: what the code returned.
        log: what the backend knows of the nodes that autograd recorded in this thread.
    """

    def __init__(self, backend: AbstractBackend, number: int, settings: CallerSettings) -> None:
        self.number = number
        self.granted = -1
        self.is_over = False
        self.result: Any = None
        self.log: Any = None
        self._backend = backend
        self._settings = settings
        self._dropped = False
        self._error: BaseException | None = None
        self._code: Callable[[], Any] | None = None
        self._turn = _Turn(backend.flag(), backend.flag())
        self._this_turn: _Turn | None = None
        self._join: Callable[[], None] | None = None

    def start(self, code: Callable[[], Any]) -> None:
        """Start the thread; it waits for the first grant."""
        self._code = code
        self._join = self._backend.spawn(partial(copy_context().run, self._work), self.number)

    # --- in the executor's thread

    def advance(self, run: int) -> None:
        """Let it go on until it reaches a later run, or its code is over."""
        if run > self.granted and not self.is_over:
            self.granted = run
            turn = self._turn  # read once: the lane may put the next one there meanwhile
            turn.begins.set()
            turn.is_over.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def end(self) -> None:
        """End the thread; it has ended when this returns. It may be called again, and before `start`.

        A thread whose start was interrupted may still come: it runs nothing, and ends by itself.
        """
        self._dropped = True
        if self._join is None:
            self._code = None
            self._turn.begins.set()
            return
        while not self.is_over:  # it may still be running, if Ctrl-C interrupted the executor's wait
            turn = self._turn
            turn.begins.set()
            turn.is_over.wait()
        self._error = None
        self._join()

    # --- in its own

    def wait_for(self, run: int) -> None:
        """Let this turn be over, if one has begun, and return in the one in which a run is granted."""
        while True:
            if self._this_turn is not None:
                self._this_turn.is_over.set()
            turn = self._turn
            turn.begins.wait()
            self._this_turn = turn
            self._turn = _Turn(self._backend.flag(), self._backend.flag())
            if self._dropped:
                raise _Dropped
            if run <= self.granted:
                return

    def _work(self) -> None:
        try:
            self.wait_for(0)
            self.log = self._backend.node_log()
            code, self._code = self._code, None
            assert code is not None
            with self._settings.entered():
                self.result = code()
        except _Dropped:
            pass
        except BaseException as error:
            self._error = error
        self._code = None
        self.is_over = True
        if self._this_turn is not None:
            self._this_turn.is_over.set()
        self._turn.is_over.set()  # the executor may have taken it, if its wait for this one was interrupted
