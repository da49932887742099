"""The tasks that wait in one step, and launching them: at their turn, or when a value is forced.

wait(task, needs)   the task is ready when all its needs have launched, and it is its turn
launch(task)        tasks that lacked only this launch are ready now, and launch right after it
"""

from collections.abc import Callable, Iterable

import torch

from baechi.errors import BaechiError
from baechi.order.turns import Turns
from baechi.run.deferred.task import DROPPED, LAUNCHED, NOTHING, WAITS, Task
from baechi.run.launch.launcher import AbstractLauncher


class Pending:
    """The waiting tasks of a step.

    Args:
        turns: whose turn it is on each device.
        launcher: chooses the thread that launches a task.
        send_ahead: sends a layer's output to the devices that will read it.
    """

    def __init__(
        self, turns: Turns, launcher: AbstractLauncher, send_ahead: Callable[[str, torch.Tensor], None]
    ) -> None:
        self.turns = turns
        self.launcher = launcher
        self.tasks: dict[Task, None] = {}
        self.launched: list[str] = []
        self.launching = False
        self.writers = 0
        """How many of the tasks will write memory that was there before."""
        self._send_ahead = send_ahead
        self._by_layer: dict[str, Task] = {}

    def wait(self, task: Task, needs: Iterable[Task], *, in_turn: bool) -> None:
        """Let a task wait.

        Args:
            task: the task.
            needs: tasks that must launch before it.
            in_turn: whether its turn has come, so that it waits for its needs only.
        """
        task.needs = list(needs)
        for need in task.needs:
            need.followers.append(task)
        task.missing = len(task.needs) + (not in_turn)
        if not in_turn:
            self._by_layer[task.name] = task
        self.tasks[task] = None
        self.writers += task.writes
        self.launcher.wait(task)
        if not task.missing:
            self.launcher.ready(task)

    def launched_here(self, layer: str) -> list[str]:
        """Note that a layer has launched.

        Args:
            layer: its name, with the number of its call.

        Returns:
            The layers whose turn it is now.
        """
        self.launched.append(layer)
        return self.turns.launch(layer)

    def wake(self, layers: Iterable[str]) -> None:
        """Give these layers their turn, and launch all tasks that are ready.

        Args:
            layers: their names.
        """
        self._wake(layers)
        self.launcher.drain()

    def force(self, tasks: Iterable[Task]) -> None:
        """Launch tasks now, and before them all tasks that they need, in the code's order.

        Args:
            tasks: tasks whose values are needed.
        """
        # The code's order is always possible: a task needs only tasks that the code reached before it.
        closure: dict[Task, None] = {}
        stack = list(tasks)
        while stack:
            task = stack.pop()
            if task.state == WAITS and task not in closure:
                closure[task] = None
                stack.extend(task.needs)
        for task in sorted(closure, key=lambda task: task.number):
            self.launcher.launch(task)
        self.launcher.drain()

    def launch(self, task: Task) -> None:
        """Launch a task; the launcher calls this, one at a time.

        Args:
            task: a task that waits.
        """
        if task.state != WAITS:
            return
        task.state = LAUNCHED
        self.tasks.pop(task, None)
        self.writers -= task.writes
        run, finish, around = task.run, task.finish, task.around
        task.run, task.finish, task.around = None, None, NOTHING
        task.needs, task.given = [], []
        assert run is not None and finish is not None
        self.launching = True
        try:
            with around:
                values = finish([run()])  # in a list, so that nothing else refers to the result
                self.launcher.note(values)
                if task.turn and len(values) == 1:
                    self._send_ahead(task.name, values[0])
        except BaseException as error:
            _drop(task, Failed(error))
            raise
        finally:
            self.launching = False
        task.schedule = None  # storages keep the task, which must not keep the step alive
        if task.turn:
            self._wake(self.launched_here(task.name))
        followers, task.followers = task.followers, []
        for follower in followers:
            self._less_missing(follower)

    def drop(self, error: BaseException) -> None:
        """Drop all waiting tasks after a failed step.

        Args:
            error: why the step failed.
        """
        self.launcher.stop()  # returns when no thread launches any more
        failed = Failed(error)
        for task in self.tasks:
            _drop(task, failed)
        self.tasks.clear()
        self._by_layer.clear()

    def _wake(self, layers: Iterable[str]) -> None:
        for layer in layers:
            task = self._by_layer.pop(layer, None)
            if task is not None:
                self._less_missing(task)

    def _less_missing(self, task: Task) -> None:
        task.missing -= 1
        if not task.missing and task.state == WAITS:
            self.launcher.ready(task)


class Failed:
    """Takes the place of a failed step's schedule.

    It keeps the error's text only: the error would keep the step's frames and their tensors alive.

    Args:
        error: why the step failed.
    """

    def __init__(self, error: BaseException) -> None:
        self._reason = f"{type(error).__name__}: {error}"

    def force(self, tasks: Iterable[Task], reason: str) -> None:
        """Raise, since no value of the step can be computed any more.

        Raises:
            BaechiError: always.
        """
        raise BaechiError(
            f"{reason}, but it was never computed: the step that it belongs to failed ({self._reason})"
        )

    def launch(self, task: Task) -> None:
        """Do nothing: tasks of a failed step never launch."""


def _drop(task: Task, failed: Failed) -> None:
    task.schedule, task.state, task.run, task.finish = failed, DROPPED, None, None
    task.needs, task.followers, task.given, task.around = [], [], [], NOTHING
