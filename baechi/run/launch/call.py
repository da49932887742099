"""Records of a schedule: the call that the code has reached, and launches that were forced."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from baechi.run.foresee.outcome import Outcome
from baechi.run.state.caller_state import CallerState
from baechi.run.state.contents import Contents
from baechi.run.steady.call_contents import KnownContents


@dataclass(frozen=True, slots=True)
class Forced:
    """A layer or function that had to launch before its turn, or whose value the code needed.

    Args:
        name: the layer or function.
        reason: why it was needed.
        line: the line of the user's code that needed it.
    """

    name: str
    reason: str
    line: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason} at {self.line}"


@dataclass(eq=False, slots=True)
class Call:
    """A call of a layer or function that the code has reached.

    Args:
        name: the layer's name with the number of its call, or the function's name.
        run: runs it, given positional and keyword arguments.
        args: positional arguments.
        kwargs: keyword arguments.
        foresee: infers its outcome with fake tensors; returns None if only a real run can tell.
        place: where it runs; None if its result has no device yet.
        number: its place in the order in which the code reaches calls.
        keeps: tensors that it may write although they are no arguments: a layer's buffers.
        contents: for a layer, the containers and tensors that it can reach.
        caller: for a layer, the settings of its caller.
    """

    name: str
    run: Callable[[Any, Any], Any]
    args: Any
    kwargs: Any
    foresee: Callable[[], Outcome | None]
    place: str | None
    number: int
    keeps: tuple[torch.Tensor, ...] = ()
    contents: Contents | KnownContents | None = None
    caller: CallerState | None = None
