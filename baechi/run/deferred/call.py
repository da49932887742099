"""What the code does now, and what it had to have at once: plain data of a schedule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from baechi.run.foresee.outcome import Outcome
from baechi.run.state.contents import Contents


@dataclass(frozen=True, slots=True)
class Forced:
    """Something that had to launch before its turn, or whose value the code wanted.

    Args:
        name: the layer or function.
        reason: who needed it.
        line: where in the user's code.
    """

    name: str
    reason: str
    line: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason} at {self.line}"


@dataclass(frozen=True, slots=True)
class Call:
    """Something that the code does now.

    Args:
        name: the layer's name with the number of its call, or the function's.
        run: does it, given positional and keyword arguments.
        args: positional arguments.
        kwargs: keyword arguments.
        foresee: what will come of it; None if only running it can tell.
        place: where it runs; None if that is nowhere yet.
        number: when the code came to it.
        keeps: tensors that it may write without being given them: a layer's buffers.
        contents: of a layer, what is within its reach.
    """

    name: str
    run: Callable[[Any, Any], Any]
    args: Any
    kwargs: Any
    foresee: Callable[[], Outcome | None]
    place: str | None
    number: int
    keeps: tuple[torch.Tensor, ...] = ()
    contents: Contents | None = None
