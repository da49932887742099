"""A layer or functional op (glue) that the code has reached and that has not launched yet."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol


class Decider(Protocol):
    """Decides when tasks launch: a schedule."""

    def force(self, tasks: "Iterable[Task]", reason: str) -> None:
        """Launch tasks now, and before them the tasks that they need, in the code's order."""

    def launch(self, task: "Task") -> None:
        """Launch a task."""


NOTHING = nullcontext()

WAITS, LAUNCHED, DROPPED = "waits", "launched", "dropped"


@dataclass(eq=False, slots=True)
class Task:
    """A call that waits to be launched.

    Args:
        schedule: decides when it launches; None after it has launched.
        number: its place in the code's order.
        name: the layer's name with the number of its call, or the function's name.
        turn: whether it is a layer, which has a turn in its device's order.
        run: launches it; returns the result.
        finish: turns the deferred values into the result; returns these tensors.
        around: restores the caller's modes and container contents while it launches, once.
        missing: how many launches, its turn included, it still waits for.
        needs: tasks that must launch before it.
        followers: tasks that wait for it.
        given: its distinct argument tensors, kept alive until it launches.
        writes: whether it will write memory that was there before.
    """

    schedule: Decider | None
    number: int
    name: str
    turn: bool
    run: Callable[[], Any] | None
    finish: Callable[[Any], list[Any]] | None
    state: str = WAITS
    missing: int = 0
    needs: "list[Task]" = field(default_factory=list)
    followers: "list[Task]" = field(default_factory=list)
    given: list[Any] = field(default_factory=list)
    around: AbstractContextManager[None] = NOTHING
    writes: bool = False

    def force(self, reason: str) -> None:
        """Launch it now, after the tasks that it needs, in the code's order.

        Args:
            reason: why its value is needed.
        """
        if self.schedule is not None:
            self.schedule.force([self], reason)
