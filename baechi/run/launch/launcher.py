"""The interface of launchers, which choose the thread that launches a task."""

from abc import ABC, abstractmethod
from typing import Any

from baechi.run.deferred.task import Task


class AbstractLauncher(ABC):
    """Launches tasks, one at a time."""

    threads = 0
    """How many threads the launcher has used."""

    @abstractmethod
    def wait(self, task: Task) -> None:
        """Register a task that begins to wait."""

    @abstractmethod
    def ready(self, task: Task) -> None:
        """Mark a task as ready: all that it needs has launched, and it is its turn."""

    @abstractmethod
    def launch(self, task: Task) -> None:
        """Launch a task now, even before its turn; it has launched when this returns."""

    @abstractmethod
    def note(self, made: Any) -> None:
        """Note the tensors, nested as they are, that the current launch made."""

    @abstractmethod
    def drain(self) -> None:
        """Launch all ready tasks; the host calls this after each launch of its own."""

    @abstractmethod
    def finish(self) -> None:
        """End the step: no task is left to launch."""

    @abstractmethod
    def stop(self) -> None:
        """Stop after a failed step: no task launches any more."""
