"""Those that wait in one step, and launching them: by turn, or before it where somebody insists.

wait(task, needs)   it is ready when all that it needs has launched, and it is its turn
launch(task)        whatever was missing only this is ready now, and launches right after it
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch

from baechi.errors import BaechiError
from baechi.order.turns import Turns
from baechi.run.deferred.task import DROPPED, LAUNCHED, WAITS, Task
from baechi.run.launch.launcher import AbstractLauncher


class Pending:
    """Who waits.

    Args:
        turns: whose turn it is on each device.
        launcher: in which thread what waited launches.
        send_ahead: sends what a layer made to where it will be read.
    """

    def __init__(
        self, turns: Turns, launcher: AbstractLauncher, send_ahead: Callable[[str, torch.Tensor], None]
    ) -> None:
        self.turns = turns
        self.launcher = launcher
        self.tasks: dict[Task, None] = {}
        self.launched: list[str] = []
        self.launching = False
        self._send_ahead = send_ahead
        self._by_layer: dict[str, Task] = {}

    def wait(self, task: Task, needs: Iterable[Task], *, in_turn: bool) -> None:
        """A task begins to wait.

        Args:
            task: the task.
            needs: those that must launch before it.
            in_turn: whether it waits for them only, and for no turn.
        """
        task.needs = list(needs)
        for need in task.needs:
            need.followers.append(task)
        task.missing = len(task.needs) + (not in_turn)
        if not in_turn:
            self._by_layer[task.name] = task
        self.tasks[task] = None
        self.launcher.wait(task)
        if not task.missing:
            self.launcher.ready(task)

    def launched_here(self, layer: str) -> list[str]:
        """The host has launched a layer itself.

        Args:
            layer: its name, with the number of its call.

        Returns:
            Whose turn it is now.
        """
        self.launched.append(layer)
        return self.turns.launch(layer)

    def wake(self, layers: Iterable[str]) -> None:
        """It is the turn of these layers: what is ready launches.

        Args:
            layers: their names.
        """
        self._wake(layers)
        self.launcher.drain()

    def force(self, tasks: Iterable[Task]) -> None:
        """Launch tasks now, and all that they need, in the code's order.

        Args:
            tasks: whose values are needed.
        """
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
        run, finish, around = task.run, task.finish, task.around
        task.run, task.finish, task.around = None, None, nullcontext
        task.needs, task.given = [], []
        assert run is not None and finish is not None
        self.launching = True
        try:
            with around():
                values = finish([run()])  # in a box, so that nobody but the box holds it
                self.launcher.note(values)
                if task.turn and len(values) == 1:
                    self._send_ahead(task.name, values[0])
        except BaseException as error:
            _drop(task, Failed(error))
            raise
        finally:
            self.launching = False
        task.schedule = None  # storages remember tasks, and shall not keep this step alive
        if task.turn:
            self._wake(self.launched_here(task.name))
        followers, task.followers = task.followers, []
        for follower in followers:
            self._less_missing(follower)

    def drop(self, error: BaseException) -> None:
        """The step failed: nothing that waits will launch.

        Args:
            error: why.
        """
        self.launcher.stop()  # what is launching in a thread is over then
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
    """Stands for the schedule of a step that failed.

    It holds no error: that would hold the frames of the step, and all that is in them.

    Args:
        error: why it failed.
    """

    def __init__(self, error: BaseException) -> None:
        self._reason = f"{type(error).__name__}: {error}"

    def force(self, tasks: Iterable[Task], reason: str) -> None:
        """Nothing can launch.

        Raises:
            BaechiError: always.
        """
        raise BaechiError(
            f"{reason}, but it was never computed: the step that it belongs to failed ({self._reason})"
        )

    def launch(self, task: Task) -> None:
        """Nothing launches."""


def _drop(task: Task, failed: Failed) -> None:
    task.schedule, task.state, task.run, task.finish = failed, DROPPED, None, None
    task.needs, task.followers, task.given, task.around = [], [], [], nullcontext
