"""The one hook of a step for reordering: what it asks before a call launches (`run.reorder`)."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn


class Call(NamedTuple):
    """A call of a layer or functional op that the code has reached.

    Args:
        name: the layer's name with the number of its call, or the function's name.
        run: launches it, given positional and keyword arguments.
        args: positional arguments.
        kwargs: keyword arguments.
        place: where it runs; None if its result has no device yet.
        number: its place in the order in which the code reaches calls.
    """

    name: str
    run: Callable[[Any, Any], Any]
    args: Any
    kwargs: Any
    place: str | None
    number: int


class Reorderer(Protocol):
    """Lets layers and functional ops wait for their turn in the plan's order."""

    launching: bool
    """Whether a call that waited launches now."""

    @property
    def waiting(self) -> Collection[Any]:
        """What waits."""

    def layer(self, call: Call, module: nn.Module, *, writes: bool) -> Any:
        """Launch a layer that the code has reached, or let it wait.

        Args:
            call: the call.
            module: the layer.
            writes: whether it may write what other code reads, or reach what it is not given.

        Returns:
            What it returns, or deferred tensors.
        """

    def function(self, call: Call, func: Any, device: torch.device | None, given: list[torch.Tensor]) -> Any:
        """Run a functional op that the code has reached, or let it wait.

        Args:
            call: the call; its arguments are plain, and it writes none.
            func: the function.
            device: where it runs, as torch knows it; None: where its arguments lie.
            given: the tensors among its arguments.

        Returns:
            What it returns, or deferred tensors.
        """

    def awaits(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether one of these tensors is still to be computed.

        Args:
            tensors: any tensors.
        """

    def launch_all(self, reason: str) -> None:
        """Launch all that waits, since code that comes now may read or write anything.

        Args:
            reason: which code.
        """

    def finish(self) -> None:
        """Launch all that still waits: the model's code is over."""
