"""In which thread what waited launches."""

from abc import ABC, abstractmethod
from typing import Any

from baechi.run.deferred.task import Task


class AbstractLauncher(ABC):
    """Launches tasks, one at a time."""

    threads = 0
    """How many threads it has used."""

    @abstractmethod
    def wait(self, task: Task) -> None:
        """A task begins to wait."""

    @abstractmethod
    def ready(self, task: Task) -> None:
        """A task has all that it needs, and it is its turn."""

    @abstractmethod
    def launch(self, task: Task) -> None:
        """Launch a task now, whosever turn it is; it has launched when this returns."""

    @abstractmethod
    def note(self, made: Any) -> None:
        """What is launching made this: tensors, nested as they are."""

    @abstractmethod
    def drain(self) -> None:
        """Launch whatever is ready; the host calls this after each launch of its own."""

    @abstractmethod
    def finish(self) -> None:
        """The step is over: nothing is left to launch."""

    @abstractmethod
    def stop(self) -> None:
        """The step failed: nothing launches any more."""
