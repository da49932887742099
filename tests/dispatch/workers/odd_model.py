"""A model for worker processes, which import it by name: a chunk's first number says what happens."""

import os
import signal
from collections.abc import Callable

import torch
from torch import nn

RAISES, TWO_ARGUMENTS, EXITS, KILLED, HANGS, INTERRUPTED, UNSENDABLE, WAITS = range(1, 9)


class TwoArguments(Exception):
    """It cannot be made again from its `args`."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left}{right}")
        self.left = left


class Lambda(Exception):
    """It holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("held")
        self.held: Callable[[], int] = lambda: 3


class Odd(nn.Module):
    """A layer, and what can go wrong in a worker."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, pipe: str = "") -> torch.Tensor:
        what = int(x[0, 0])
        if what == RAISES:
            raise TwoArguments("two", "arguments")
        if what == TWO_ARGUMENTS:
            raise Lambda
        if what == EXITS:
            os._exit(9)
        if what == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        if what in (HANGS, WAITS):
            with open(pipe, "rb") as end:  # until the caller opens the other end
                end.read()
        if what == INTERRUPTED:
            os.kill(os.getpid(), signal.SIGINT)
        if what == UNSENDABLE:
            return lambda: 3  # type: ignore[return-value]
        out: torch.Tensor = self.layer(x)
        return out


def make() -> Odd:
    """A factory: the seed of the caller makes its weights the same in each worker."""
    return Odd().eval()


def broken() -> nn.Module:
    """A factory that fails."""
    raise RuntimeError("no checkpoint")
