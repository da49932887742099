"""The host's own thread launches each task, right after the launch that the task waited for."""

from collections import deque
from typing import Any

from baechi.run.deferred.task import Task
from baechi.run.launch.launcher import AbstractLauncher


class HostLauncher(AbstractLauncher):
    """Launches ready tasks as continuations of the current launch, without threads."""

    def __init__(self) -> None:
        self._ready: deque[Task] = deque()
        self._draining = False

    def wait(self, task: Task) -> None:
        pass

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
