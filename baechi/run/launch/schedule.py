"""One step in the plan's order: which calls launch where the code reaches them, and which wait.

    the host reaches a layer
      its turn on its device, and all its inputs have launched?   launch it here
      otherwise   it waits as a task; the code goes on with deferred values
    a launch  ->  tasks whose turn has come, and whose needs have launched, launch right after it
    the code needs a value  ->  the task and all that it needs launch now, in the code's order

The plan's order may be broken, dependencies never. A task's needs follow from its actual arguments, and
from the tasks that wait to write memory that it reads (`storage_use`). A task never needs one that was
reached after it. So launching in the code's order is always possible, and there is no deadlock.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import partial
from typing import Any

import torch

from baechi.order import LaunchOrder
from baechi.order.turns import Turns
from baechi.run.deferred.storage_use import needs_to_write, note_read, note_write
from baechi.run.deferred.task import WAITS, Task
from baechi.run.foresee.outcome import Outcome
from baechi.run.launch.around import Around
from baechi.run.launch.call import Call, Forced
from baechi.run.launch.code_order import casts_weights, modes, must_keep_code_order
from baechi.run.launch.launcher import AbstractLauncher
from baechi.run.launch.needs import Needs
from baechi.run.launch.pending import Pending
from baechi.run.launch.stand_ins import hand_over, stand_ins
from baechi.run.launch.user_line import user_line
from baechi.run.state.caller_state import CallerState
from baechi.run.state.contents import Contents
from baechi.run.state.random_draws import drawing_as_if_now
from baechi.torchlib.tensors.pytree import tensors_in


class Schedule:
    """Decides for one step which calls launch at once, and which wait.

    Args:
        order: the plan's order.
        launcher: chooses the thread that launches a task.
        aside: a context in which glue mode is off. The mode is off now.
        becomes: is told of a result and of the deferred value that is about to become it.
        send_ahead: sends a layer's output to the devices that will read it.
        draw_at: lets a device's generator continue from the state that the others have reached.
        spend: charges the host's clock with a call that waits.
    """

    def __init__(
        self,
        order: LaunchOrder,
        launcher: AbstractLauncher,
        aside: Callable[[], AbstractContextManager[None]],
        becomes: Callable[[torch.Tensor, torch.Tensor], None],
        send_ahead: Callable[[str, torch.Tensor], None],
        draw_at: Callable[[torch.device], None],
        spend: Callable[[], None],
    ) -> None:
        self._draw_at = draw_at
        self._spend = spend
        self.turns = Turns(order)
        self.launcher = launcher
        self.pending = Pending(self.turns, launcher, send_ahead)
        self.waiting = self.pending.tasks
        self.forced: list[Forced] = []
        self.deferred = 0
        self._aside = aside
        self._becomes = becomes
        self.needs = Needs(order.parents, self.pending)
        self._modes = modes()

    @property
    def counts(self) -> dict[str, int]:
        """Counters of the step."""
        threads = self.launcher.threads
        return {"deferred": self.deferred, "forced": len(self.forced), "threads": threads}

    def catch_up(self, layer: str, *, in_turn: bool) -> bool:
        """Launch what waits for layers that the code has passed over. The glue mode is off.

        Args:
            layer: the layer that the host has reached, with the number of its call.
            in_turn: whether it was its turn then.

        Returns:
            Whether it is its turn now.
        """
        if not self.turns.has_skipped():
            return in_turn
        self.pending.wake(self.turns.skip())
        return in_turn or self.turns.is_up(layer)

    def launch_here(self, layer: str, run: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        """Launch a layer where the host reached it. The glue mode is off, or nothing waits.

        Args:
            layer: its name, with the number of its call.
            run: launches it.
            args: its positional arguments.
            kwargs: its keyword arguments.
        """
        result = run(args, kwargs)
        woken = self.pending.launched_here(layer)
        if self.waiting:
            self.pending.wake(woken)
        return result

    def layer(
        self,
        call: Call,
        needs: dict[Task, None],
        *,
        in_turn: bool,
        cannot_wait: Callable[[], str],
        writes: bool,
    ) -> Any:
        """Launch a layer that the host has reached, or let it wait. The glue mode is off.

        Args:
            call: the layer.
            needs: what must launch before it.
            in_turn: whether it is its turn.
            cannot_wait: says why the layer must launch at once; empty if it may wait.
            writes: whether it may write its arguments.

        Returns:
            What it returns, or deferred values.
        """
        given = None if call.contents is None else call.contents.given
        if given is None:
            given = list(tensors_in(call.args, call.kwargs))
        reason, outcome = "", None
        if needs or not in_turn:
            reason = cannot_wait() or must_keep_code_order(self._modes)
            outcome = None if reason else call.foresee()
            if outcome is not None:
                result, task = self._defer(call, outcome, given, needs, in_turn=in_turn)
                self.needs.layers[call.name] = task
                return result
            reason = reason or "only running it tells what it returns"
            self.forced.append(Forced(call.name, reason, user_line()))
            self.pending.force(needs)
        if writes:
            self._before_write(call, given)
        return self.launch_here(call.name, call.run, call.args, call.kwargs)

    def glue(self, call: Call, given: list[torch.Tensor], written: list[torch.Tensor]) -> Any:
        """Run a functional op (glue) that the code has reached, or let it wait.

        Args:
            call: the function.
            given: the tensors among its arguments.
            written: those of them that it writes in place.

        Returns:
            What it returns, or deferred values.
        """
        needs = self.needs.of(given)
        for tensor in written:
            needs.update(dict.fromkeys(needs_to_write(tensor)))
        if not needs:
            return call.run(call.args, call.kwargs)
        reason = must_keep_code_order(self._modes) or casts_weights(given)
        outcome = None if reason else call.foresee()
        if outcome is None:
            self.force(needs, reason or f"{call.name} needs values")
            return call.run(call.args, call.kwargs)
        return self._defer(call, outcome, given, needs, in_turn=True, layer=False)[0]

    def force_values(self, given: Iterable[torch.Tensor], reason: str) -> None:
        """Launch the tasks that must run before some tensors can be read.

        Args:
            given: the tensors.
            reason: why they are needed.
        """
        self.force(self.needs.of(given), reason)

    def force_users(self, tensor: torch.Tensor, reason: str) -> None:
        """Launch the tasks that wait to read or write a tensor.

        Args:
            tensor: the tensor.
            reason: what is about to happen to the tensor.
        """
        self.force(needs_to_write(tensor), reason)

    def force(self, tasks: Iterable[Task], reason: str) -> None:
        """Launch tasks now, and before them all tasks that they need, in the code's order.

        Args:
            tasks: tasks whose values are needed.
            reason: why they are needed.
        """
        wanted = [task for task in tasks if task.state == WAITS]
        if wanted:
            self.forced.append(Forced(wanted[0].name, reason, user_line()))
            with self._aside():  # the caller may be a patched entry point, where the mode is on
                self.pending.force(wanted)

    def launch(self, task: Task) -> None:
        """Launch a task; the launcher calls this, one at a time.

        Args:
            task: a task that waits.
        """
        self.pending.launch(task)

    def finish(self) -> None:
        """End the step: launch tasks whose turn will never come, since the code did not reach all layers."""
        with self._aside():
            self.pending.wake(self.turns.end())
            while self.waiting:
                first = min(self.waiting, key=lambda task: task.number)
                self.forced.append(Forced(first.name, "the step is over", ""))
                self.pending.force([first])
            self.launcher.finish()
        self.needs.layers.clear()

    def drop(self, error: BaseException) -> None:
        """Drop all waiting tasks after a failed step.

        Args:
            error: why the step failed.
        """
        self.pending.drop(error)
        self.needs.layers.clear()

    def _before_write(self, call: Call, given: list[torch.Tensor]) -> None:
        assert call.contents is not None
        if not any(needs_to_write(tensor) for tensor in call.contents.tensors):
            return
        outcome = call.foresee()
        # The layer launches now, before tasks that the code reached earlier. Those must still read the
        # old values, so they launch first. Without an outcome, any tensor within reach may be written.
        distinct = _distinct(given)
        written = call.contents.tensors if outcome is None else [distinct[index] for index in outcome.written]
        for tensor in written:
            self.force(needs_to_write(tensor), "what they read is written in place")

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
        distinct = _distinct(given)
        for index in outcome.written:
            needs.update(dict.fromkeys(needs_to_write(distinct[index])))
        run: Callable[[], Any] = partial(call.run, call.args, call.kwargs)
        if outcome.draws:
            run = drawing_as_if_now(outcome.draws, run, self._draw_at)
        if call.contents is not None:  # a layer's code may read context variables: it gets those of now
            run = partial(copy_context().run, run)
        contents = call.contents or Contents(call.args, call.kwargs)
        around = Around(call.caller or CallerState.now(), contents, call.name)
        # Placeholders name the task, and `finish` names the placeholders: so `finish` is set after both.
        task = Task(self, call.number, call.name, layer, run, None, around=around)
        result, values = stand_ins(task, call, outcome, distinct)
        task.finish = partial(hand_over, values, self._becomes, call.name)
        task.given = distinct
        task.writes = bool(outcome.written or call.keeps)
        for index, tensor in enumerate(distinct):
            (note_write if index in outcome.written else note_read)(tensor, task)
        ids = frozenset(map(id, distinct))
        for tensor in contents.tensors if layer else ():
            if id(tensor) not in ids:
                note_read(tensor, task)
        for tensor in call.keeps:
            note_write(tensor, task)
        self.deferred += 1
        if layer or None in outcome.alias:  # views are free on emulated devices
            self._spend()
        self.pending.wait(task, needs, in_turn=in_turn)
        return result, task


def _distinct(given: list[torch.Tensor]) -> list[torch.Tensor]:
    return given if len(given) < 2 else list({id(tensor): tensor for tensor in given}.values())
