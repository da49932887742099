"""One step in the planner's order: who launches where the code reaches it, and who waits.

    the host reaches a layer
      its turn on its device, and all that it reads has launched?   launch it here
      no?   it waits as a task; the code goes on with deferred values
    a launch  ->  tasks whose turn it is, and which have all that they need, launch right after it
    the code needs a value  ->  what that needs launches now, in the code's order

Order is a wish, dependencies are law: what a task needs is read from its actual arguments, and from
who waits to write the memory that it reads (`storage_use`). A task never needs one that was reached
after it, so launching in the code's order is always possible, and nothing can wait for ever.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from baechi.backend.nest import tensors_in
from baechi.errors import BaechiError
from baechi.order import LaunchOrder
from baechi.order.turns import Turns
from baechi.run.call import Call, Forced
from baechi.run.caller_state import CallerState, saves_through_hooks
from baechi.run.deferred import is_deferred
from baechi.run.entrances import inside_a_function
from baechi.run.launcher import AbstractLauncher
from baechi.run.outcome import Outcome
from baechi.run.random_draws import drawing_as_if_now
from baechi.run.stand_ins import hand_over, stand_ins
from baechi.run.storage_use import needs_to_read, needs_to_write, note_read, note_write
from baechi.run.task import DROPPED, LAUNCHED, WAITS, Task
from baechi.run.user_line import user_line


class Schedule:
    """Who waits in one step.

    Args:
        order: the plan's order.
        launcher: in which thread what waited launches.
        aside: takes glue mode off for a while. It is off now.
        becomes: told of a result and the deferred value that is about to become it.
        send_ahead: sends what a layer made to where it will be read.
    """

    def __init__(
        self,
        order: LaunchOrder,
        launcher: AbstractLauncher,
        aside: Callable[[], AbstractContextManager[None]],
        becomes: Callable[[torch.Tensor, torch.Tensor], None],
        send_ahead: Callable[[str, torch.Tensor], None],
    ) -> None:
        self._aside = aside
        self._send_ahead = send_ahead
        self._becomes = becomes
        self.turns = Turns(order)
        self.launcher = launcher
        self.waiting: dict[Task, None] = {}
        self.forced: list[Forced] = []
        self.deferred = 0
        self.launched: list[str] = []
        self.launching = False
        self._modes = _modes()
        self._by_layer: dict[str, Task] = {}
        self._error: BaseException | None = None
        self._parents = order.parents
        self._layers: dict[str, Task] = {}
        self._last_call: dict[str, Task | None] = {}

    @property
    def counts(self) -> dict[str, int]:
        """What is counted of a step."""
        threads = self.launcher.threads
        return {"deferred": self.deferred, "forced": len(self.forced), "threads": threads}

    def layer(
        self, call: Call, *, module: str, cannot_wait: Callable[[], str], writes: bool, stateful: bool
    ) -> Any:
        """The host has reached a layer that may have to wait.

        Args:
            call: the layer.
            module: its module.
            cannot_wait: says why its value is needed at once, if it is.
            writes: whether it may write what it is given.
            stateful: whether the calls of its module keep the code's order.

        Returns:
            What it returns, or deferred values.
        """
        with self._aside():
            return self._layer(call, module, cannot_wait, writes=writes, stateful=stateful)

    def may_launch(self, layer: str) -> bool:
        """The host reaches a layer: whether nothing waits, and it is its turn.

        Args:
            layer: its name, with the number of its call.
        """
        return self.turns.reach(layer) and not self.waiting

    def launch_here(self, layer: str, run: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        """Launch a layer where the host reached it.

        Args:
            layer: its name, with the number of its call.
            run: launches it.
            args: its positional arguments.
            kwargs: its keyword arguments.
        """
        result = run(args, kwargs)
        self.launched.append(layer)
        woken = self.turns.launch(layer)
        if self.waiting:
            with self._aside():
                self._wake(woken)
                self.launcher.drain()
        return result

    def _layer(
        self, call: Call, module: str, cannot_wait: Callable[[], str], *, writes: bool, stateful: bool
    ) -> Any:
        turn = self.turns.is_up(call.name)
        self._wake(self.turns.skip())
        self.launcher.drain()
        turn = turn or self.turns.is_up(call.name)
        given = list(tensors_in(call.args, call.kwargs))
        needs = self._needs(given)
        for parent in self._parents.get(call.name, ()):
            task = self._layers.get(parent)
            if task is not None and task.state == WAITS:
                needs[task] = None
        if stateful:
            before, self._last_call[module] = self._last_call.get(module), None
            if before is not None and before.state == WAITS:
                needs[before] = None
        if turn and not needs:
            self._before_write(given if writes else ())
            return self.launch_here(call.name, call.run, call.args, call.kwargs)
        reason = cannot_wait() or self.must_keep_code_order()
        outcome = None if reason else call.foresee()
        if outcome is None:
            self.forced.append(
                Forced(call.name, reason or "only running it tells what it returns", user_line())
            )
            self._force(needs)
            self._before_write(given if writes else ())
            return self.launch_here(call.name, call.run, call.args, call.kwargs)
        result, task = self._defer(call, outcome, given, needs, in_turn=turn)
        if stateful:
            self._last_call[module] = task
        return result

    def glue(self, call: Call, given: list[torch.Tensor], written: list[torch.Tensor]) -> Any:
        """The code computes something between layers.

        Args:
            call: the function.
            given: the tensors it was given.
            written: those of them that it writes in place.

        Returns:
            What it returns, or deferred values.
        """
        needs = self._needs(given)
        for tensor in written:
            needs.update(dict.fromkeys(needs_to_write(tensor)))
        if not needs:
            return call.run(call.args, call.kwargs)
        reason = self.must_keep_code_order()
        outcome = None if reason else call.foresee()
        if outcome is None:
            self.force(needs, reason or f"{call.name} needs values")
            return call.run(call.args, call.kwargs)
        return self._defer(call, outcome, given, needs, in_turn=True, layer=False)[0]

    def force_values(self, given: Iterable[torch.Tensor], reason: str) -> None:
        """Launch whatever some tensors wait for.

        Args:
            given: the tensors.
            reason: who needs them.
        """
        self.force(self._needs(given), reason)

    def must_keep_code_order(self) -> str:
        """Why nothing may wait here, if so."""
        if torch._C._current_graph_task_id() != -1:
            return "runs in backward"
        if inside_a_function():
            return "runs inside an autograd.Function"
        if saves_through_hooks():
            return "hooks see what autograd saves, in order (activation checkpointing)"
        if _modes() != self._modes:
            return "a mode is on that was not on when the step began"
        return ""

    def force(self, tasks: Iterable[Task], reason: str) -> None:
        """Launch tasks now, and all that they need, in the code's order.

        Args:
            tasks: whose values are needed.
            reason: who needs them.
        """
        if self._error is not None:
            raise BaechiError(
                "this value was never computed: the step that it belongs to failed"
            ) from self._error
        wanted = [task for task in tasks if task.state == WAITS]
        if wanted:
            self.forced.append(Forced(wanted[0].name, reason, user_line()))
            self._force(wanted)

    def _force(self, tasks: Iterable[Task]) -> None:
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

    def finish(self) -> None:
        """The code is over: what waits for a turn that will not come launches."""
        with self._aside():
            self._finish()

    def _finish(self) -> None:
        self._wake(self.turns.end())
        self.launcher.drain()
        for task in sorted(self.waiting, key=lambda task: task.number):
            if task.state == WAITS:
                self.forced.append(Forced(task.name, "the step is over", ""))
                self.launcher.launch(task)
                self.launcher.drain()
        self.launcher.finish()

    def drop(self, error: BaseException | None) -> None:
        """The step failed: nothing that waits will launch."""
        for task in self.waiting:
            task.state, task.run, task.finish = DROPPED, None, None
            task.needs, task.followers, task.given = [], [], []
        self.waiting.clear()
        self._by_layer.clear()
        self._error = error
        self.launcher.stop()

    def launch(self, task: Task) -> None:
        """Launch a task; the launcher calls this, one at a time.

        Args:
            task: a task that waits.
        """
        if task.state != WAITS:
            return
        task.state = LAUNCHED
        self.waiting.pop(task, None)
        run, finish = task.run, task.finish
        task.run = task.finish = None
        task.needs, task.given = [], []
        assert run is not None and finish is not None
        self.launching = True
        try:
            values = finish([run()])  # in a box, so that nobody but the box holds it
            self.launcher.note(values)
            if task.turn and len(values) == 1:
                self._send_ahead(task.name, values[0])
        finally:
            self.launching = False
        self._launched(task.name, layer=task.turn)
        followers, task.followers = task.followers, []
        for follower in followers:
            self._less_missing(follower)

    def _launched(self, name: str, *, layer: bool) -> None:
        if layer:
            self.launched.append(name)
            self._wake(self.turns.launch(name))

    def _wake(self, layers: Iterable[str]) -> None:
        for layer in layers:
            task = self._by_layer.pop(layer, None)
            if task is not None:
                self._less_missing(task)

    def _less_missing(self, task: Task) -> None:
        task.missing -= 1
        if not task.missing and task.state == WAITS:
            self.launcher.ready(task)

    def _needs(self, given: Iterable[torch.Tensor]) -> dict[Task, None]:
        needs: dict[Task, None] = {}
        for tensor in given:
            if is_deferred(tensor):
                needs[tensor.task] = None  # type: ignore[attr-defined]
            needs.update(dict.fromkeys(needs_to_read(tensor)))
        return needs

    def _before_write(self, given: Iterable[torch.Tensor]) -> None:
        for tensor in given:
            waiting = needs_to_write(tensor)
            if waiting:
                self.force(waiting, "what they read is written in place")

    def _defer(
        self,
        call: Call,
        outcome: Outcome,
        given: list[torch.Tensor],
        needs: dict[Task, None],
        *,
        in_turn: bool,
        layer: bool = True,
    ) -> tuple[Any, Task]:
        distinct = list({id(tensor): tensor for tensor in given}.values())
        for index in outcome.written:
            needs.update(dict.fromkeys(needs_to_write(distinct[index])))
        state = CallerState.now()
        run: Callable[[], Any] = partial(_run_as, state, call)
        if outcome.draws:
            run = drawing_as_if_now(outcome.draws, run)
        task = Task(self, call.number, call.name, layer, run, None)
        result, values = stand_ins(task, call, outcome, distinct)
        task.finish = partial(hand_over, values, self._becomes, call.name)
        task.given, task.needs = distinct, list(needs)
        for need in needs:
            need.followers.append(task)
        task.missing = len(needs) + (not in_turn)
        for index, tensor in enumerate(distinct):
            (note_write if index in outcome.written else note_read)(tensor, task)
        if not in_turn:
            self._by_layer[call.name] = task
        self.waiting[task] = None
        if layer:
            self._layers[call.name] = task
        self.deferred += 1
        self.launcher.wait(task)
        if not task.missing:
            self.launcher.ready(task)
        return result, task


def _run_as(state: CallerState, call: Call) -> Any:
    with state.restored():
        return call.run(call.args, call.kwargs)


def _modes() -> tuple[int, int]:
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
