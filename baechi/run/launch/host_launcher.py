"""The host's own thread launches each task, right after the launch that the task waited for."""

from collections import deque
from typing import Any

from baechi.backend import AbstractBackend
from baechi.run.deferred.task import Task
from baechi.run.launch.launcher import AbstractLauncher


class HostLauncher(AbstractLauncher):
    """Launches ready tasks as continuations of the current launch, without threads.

    Args:
        backend: is charged with the tasks that wait.
    """

    def __init__(self, backend: AbstractBackend) -> None:
        self._backend = backend
        self._ready: deque[Task] = deque()
        self._draining = False

    def wait(self, task: Task) -> None:
        self._backend.spend("waiting_layer", self._backend.host)

    def ready(self, task: Task) -> None:
        self._ready.append(task)

    def launch(self, task: Task) -> None:
        if task.schedule is not None:
            task.schedule.launch(task)

    def note(self, made: Any) -> None:
        pass

    def drain(self) -> None:
        if self._draining:  # the outer call continues after this launch
            return
        self._draining = True
        try:
            while self._ready:
                self.launch(self._ready.popleft())
        finally:
            self._draining = False

    def finish(self) -> None:
        self._ready.clear()

    def stop(self) -> None:
        self._ready.clear()
