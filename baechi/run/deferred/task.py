"""A layer, or a piece of glue, that was reached and has not launched: what it waits for, who waits for it."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol


class Decider(Protocol):
    """Who decides when tasks launch: a schedule."""

    def force(self, tasks: "Iterable[Task]", reason: str) -> None:
        """Launch tasks now, and all that they need, in the code's order."""

    def launch(self, task: "Task") -> None:
        """Launch a task."""


WAITS, LAUNCHED, DROPPED = "waits", "launched", "dropped"


@dataclass(eq=False, slots=True)
class Task:
    """Something that waits.

    Args:
        schedule: who decides when it launches; None when it has.
        number: its place in the code's order.
        name: the layer's name with the number of its call, or the function's.
        turn: whether its device has an order in which it must wait for its turn.
        run: launches it; returns what it returns.
        finish: hands what was returned to the values that stand for it; returns these.
        around: what was set where the code reached it, set again while it launches.
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
    around: Callable[[], AbstractContextManager[None]] = nullcontext

    def force(self, reason: str) -> None:
        """Launch it now, after all that it needs, in the code's order.

        Args:
            reason: who needs its value.
        """
        if self.schedule is not None:
            self.schedule.force([self], reason)
