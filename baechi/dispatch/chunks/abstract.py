"""What the loop asks of an input that is divided."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from baechi.dispatch.merge.rules import Out

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """The model, as those see it who divide its inputs.

    Args:
        model: gives the model; it is made when this is first asked.
        made: gives the model if it was made, else None.
        out: how results become one, as the user said it.
        runs_here: whether the model may run in this process, beside its chunks.
        checked: for which states of the model a row alone was compared with a chunk.
    """

    model: Callable[[], nn.Module]
    made: Callable[[], nn.Module | None]
    out: Out
    runs_here: bool = True
    checked: set[Any] = field(default_factory=set)


class AbstractCall(ABC):
    """The arguments of one call, divided into items.

    Attributes:
        total: how many items there are, at least one.
        most: how many items a chunk may have; None if that is the scheduler's to say.
    """

    total: int
    most: int | None = None

    @abstractmethod
    def arguments(self, start: int, stop: int) -> list[Arguments]:
        """The arguments of a chunk.

        Args:
            start, stop: its items are these, without `stop`.

        Returns:
            For each call of the model that the chunk takes, its arguments.

        Raises:
            FatalError: these arguments, or this model, cannot be divided.
        """

    @abstractmethod
    def add(self, start: int, stop: int, results: list[Any]) -> None:
        """Take in what a chunk made. Chunks come in any order.

        Args:
            start, stop: its items.
            results: what the model returned, for each of its calls.
        """

    @abstractmethod
    def result(self) -> Any:
        """The result of the whole call, once all items are there.

        Raises:
            FatalError: it is not known how they become one.
        """

    @abstractmethod
    def label(self, start: int, stop: int) -> str:
        """What a chunk is, for messages.

        Args:
            start, stop: its items.
        """


class AbstractChunks(ABC):
    """A way to divide inputs."""

    @abstractmethod
    def open(self, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractCall:
        """Look at the arguments of a call.

        Args:
            subject: the model.
            args, kwargs: as the user passed them.

        Raises:
            FatalError: they cannot be divided in this way.
        """
