"""Jobs, what becomes of them, and what the loop asks of workers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from baechi.dispatch.chunks.abstract import Arguments


@dataclass
class Job:
    """A chunk for one target.

    Args:
        number: counts chunks in the order in which they were given out.
        target: the target's name.
        calls: the arguments of each call of the model.
        items: how many items it has.
        divided: whether it is a part of a call.
    """

    number: int
    target: str
    calls: list[Arguments]
    items: int
    divided: bool = False


@dataclass
class Done:
    """What became of a job.

    Args:
        number: the job's.
        results: what the model returned, for each of its calls.
        error: what was raised instead.
        taken_s: seconds that the target was busy with it.
        now_s: the clock when it was over.
        not_begun: whether it never ran: its worker ended before.
    """

    number: int
    results: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    taken_s: float | None = None
    now_s: float = 0.0
    not_begun: bool = False


class AbstractWorkers(ABC):
    """Run jobs for the length of one call."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Hand a job to its target's worker.

        Args:
            job: the job.
        """

    @abstractmethod
    def begin(self) -> None:
        """What was handed over may begin: the next job may be long in coming."""

    @abstractmethod
    def wait(self) -> list[Done]:
        """Wait until a job that was handed over is done.

        Returns:
            At least one.
        """

    @abstractmethod
    def acknowledge(self) -> None:
        """All that is done so far was seen, and what could be handed over was: it may begin."""

    @abstractmethod
    def drain(self) -> list[Done]:
        """Let what runs end.

        It counts what it was handed itself: what the caller had in hand may have been lost to an exception of
        a signal's handler.

        Returns:
            What was not returned before; jobs that had not begun may be left out.
        """

    @abstractmethod
    def now_s(self) -> float:
        """The clock by which chunks are timed, in seconds."""

    @abstractmethod
    def end(self) -> None:
        """Nothing is in flight, and no job comes any more."""

    @abstractmethod
    def abandon(self) -> None:
        """Give up what is in flight, as soon as that is possible: Ctrl-C."""
