"""One step in the plan's order: which calls launch where the code reaches them, and which wait.

    the host reaches a layer
      its turn on its device, and its inputs have launched?   launch it here
      plain: tensors in, tensors out?                         it waits as a task; the code goes on with
                                                              deferred tensors
      anything else                                           all that waits launches first, as in the code
    a launch  ->  tasks whose turn has come, and whose needs have launched, launch right after it
    the code needs a value  ->  the task and all that it needs launch now, in the code's order

The plan's order may be broken, dependencies never. Nothing that waits writes memory, draws numbers or has
hooks, and before anything that might write, all that waits launches. So it computes what it would have
computed where the code reached it. A task needs only tasks that were reached before it: there is no deadlock.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from baechi.errors import BaechiError
from baechi.order import LaunchOrder
from baechi.order.turns import Turns
from baechi.run.reorder.deferred_values import Deferred, Task, defer, hand_over, tasks_of
from baechi.run.reorder.held import Held
from baechi.run.reorder.launchers import Launcher
from baechi.run.reorder.outcome import Outcome, Outcomes
from baechi.run.reorder.template import filled
from baechi.run.state.caller_state import CallerState
from baechi.run.state.regions import why_as_written
from baechi.run.step.call import Call
from baechi.run.step.glue import GlueMode
from baechi.run.step.loans import version_of
from baechi.run.step.reach import ModesAside
from baechi.run.user_line import user_line
from baechi.torchlib.modules.inside import modules_in
from baechi.torchlib.private.modes import (
    dispatch_mode_count,
    dispatch_modes,
    function_mode_count,
    set_dispatch_modes,
)
from baechi.torchlib.private.modules import (
    EVERY_FORWARD_HOOKS,
    EVERY_FORWARD_PRE_HOOKS,
    forward_hooks,
    forward_pre_hooks,
)

VARIABLE = "BAECHI_REORDER"
"""The environment's switch."""


_FAIL_BY_VALUES = frozenset({"cholesky", "cholesky_inverse", "inverse", "pinverse", "svd", "qr", "lu_solve"})
"""Functions that raise where their values allow no result, besides those of `torch.linalg`."""


def reordering_is_off() -> bool:
    """Whether the environment turns reordering off for all models (`BAECHI_REORDER=0`)."""
    return os.environ.get(VARIABLE, "1").strip().lower() in ("0", "false", "off", "no")


def has_hooks_inside(root: nn.Module, modules: Iterable[nn.Module] | None = None) -> bool:
    """Whether hooks run inside a step, which see real tensors: on modules below its root, or on all."""
    if EVERY_FORWARD_HOOKS or EVERY_FORWARD_PRE_HOOKS:
        return True
    for module in modules_in(root) if modules is None else modules:
        if (forward_hooks(module) or forward_pre_hooks(module)) and module is not root:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Forced:
    """A layer or function that had to launch before its turn, or whose value the code needed.

    Args:
        name: the layer or function.
        reason: why it was needed.
        line: the line of the user's code that needed it.
    """

    name: str
    reason: str
    line: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason} at {self.line}"


class Schedule:
    """Decides for one step which calls launch at once, and which wait.

    Args:
        order: the plan's order.
        launcher: chooses the thread that launches a task.
        outcomes: what calls return.
        glue: the step's function mode, which is off now.
        spend: charges the host's clock with a call that waits.

    Attributes:
        waiting: the tasks that wait.
        launching: whether a task launches now.
        launched: the layers that have launched, in this order.
        forced: the launches that did not wait for their turn.
        deferred: how many calls had to wait.
    """

    def __init__(
        self,
        order: LaunchOrder,
        launcher: Launcher,
        outcomes: Outcomes,
        glue: GlueMode,
        spend: Callable[[], None],
    ) -> None:
        self.waiting: dict[Task, None] = {}
        self.launching = False
        self.launched: list[str] = []
        self.forced: list[Forced] = []
        self.deferred = 0
        self._turns, self._launcher, self._outcomes = Turns(order), launcher, outcomes
        self._glue, self._step, self._spend = glue, glue.step, spend
        self._modes = _modes()
        self._infers = False
        self._ready: deque[Task] = deque()
        self._draining = False
        self._by_layer: dict[str, Task] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Counters of the step."""
        return {"deferred": self.deferred, "forced": len(self.forced), "threads": self._launcher.threads}

    def layer(self, call: Call, module: nn.Module, *, writes: bool) -> Any:
        """See `Reorderer`."""
        if self._infers:
            raise BaechiError(f"{call.name} is called by another layer, of which it is no submodule")
        in_turn = self._turns.reach(call.name)
        if in_turn and not self.waiting:
            return self._launch_here(call)
        with ModesAside(self._glue):
            if self._turns.has_skipped():
                self._wake(self._turns.skip())
                in_turn = in_turn or self._turns.is_up(call.name)
            given = None if writes else _tensors_alone(call)
            if given is None:
                self.launch_all(f"{call.name} runs in the code's order")
                return self._launch_here(call)
            needs = tasks_of(given)
            if in_turn and not needs:
                return self._launch_here(call)
            caller = CallerState.now()
            reason, held, outcome = self._why_in_code_order(caller), None, None
            if not reason:
                held = self._outcomes.held(module)
                reason = held.why_not
            if held is not None and not reason:
                device = self._step.backend.kernel_device(str(call.place))
                outcome = self._infer(partial(self._outcomes.of_layer, module, held, device), call, caller)
            if outcome is None or held is None:
                reason = reason or "only running it tells what it returns"
                self.forced.append(Forced(call.name, reason, user_line()))
                self._launch_tasks(needs)
                return self._launch_here(call)
            read = _versions([*given, *held.tensors])
            run = partial(copy_context().run, _launch_as_reached, call, caller, read, held)
            task = Task(self, call.name, call.number, True, run, needs=list(needs))
            return self._defer(task, outcome, given, call.place, in_turn=in_turn)

    def function(self, call: Call, func: Any, device: torch.device | None, given: list[torch.Tensor]) -> Any:
        """See `Reorderer`."""
        needs = tasks_of(given)
        caller = CallerState.now()
        reason = self._why_in_code_order(caller)
        if call.name.startswith("linalg_") or call.name in _FAIL_BY_VALUES:
            reason = reason or "it may fail for its values, which the code may catch"
        infer = partial(self._outcomes.of_function, func, device)
        outcome = None if reason else self._infer(infer, call, caller)
        if outcome is None:
            self.force(needs, reason or f"{call.name} needs values")
            return call.run(call.args, call.kwargs)
        call = call._replace(args=_copied(call.args), kwargs=_copied(call.kwargs))
        run = partial(_launch_as_reached, call, caller, _versions(given))
        task = Task(self, call.name, call.number, False, run, needs=list(needs))
        return self._defer(task, outcome, given, call.place, in_turn=True)

    def awaits(self, tensors: Iterable[torch.Tensor]) -> bool:
        """See `Reorderer`."""
        return any(type(tensor) is Deferred for tensor in tensors)

    def launch_all(self, reason: str) -> None:
        """See `Reorderer`."""
        self.force(self.waiting, reason)

    def force(self, tasks: Iterable[Task], reason: str) -> None:
        """Launch tasks now, and before them all tasks that they need, in the code's order."""
        wanted = [task for task in tasks if task.waits]
        if wanted:
            self.forced.append(Forced(wanted[0].name, reason, user_line()))
            with ModesAside(self._glue):
                self._launch_tasks(wanted)

    def finish(self) -> None:
        """See `Reorderer`. The turn of some may never come, since the code did not reach all layers."""
        with ModesAside(self._glue):
            self._wake(self._turns.end())
            while self.waiting:
                first = min(self.waiting, key=lambda task: task.number)
                self.forced.append(Forced(first.name, "the step is over", ""))
                self._launch_tasks([first])
            self._launcher.end()

    def drop(self, error: BaseException) -> None:
        """Drop all waiting tasks after a failed step."""
        self._ready.clear()
        self._launcher.end()
        self._drop_all([*self.waiting], error)

    def _why_in_code_order(self, caller: CallerState) -> str:
        """Why no call may wait here, by the settings of now; empty if calls may."""
        why = why_as_written()
        if why:
            return why
        if caller.autocasts:
            return "weights are cast once for several calls (autocast)"
        if _modes() != self._modes:
            return "a mode is on that was not on when the step began"
        return ""

    def _infer(self, infer: Callable[..., Outcome | None], call: Call, caller: CallerState) -> Outcome | None:
        self._infers = True
        try:
            return infer((call.args, call.kwargs), caller)
        finally:
            self._infers = False

    def _defer(
        self, task: Task, outcome: Outcome, given: list[torch.Tensor], place: str | None, *, in_turn: bool
    ) -> Any:
        """Let a task wait; returns what stands for its result."""
        distinct = list({id(tensor): tensor for tensor in given}.values())
        results: list[torch.Tensor] = []
        for meta, argument in zip(outcome.metas, outcome.given, strict=True):
            results.append(defer(meta, task, place) if argument is None else distinct[argument])
        task.template, task.values = outcome.result, [*results]
        for need in task.needs:
            need.followers.append(task)
        task.missing = len(task.needs) + (not in_turn)
        if not in_turn:
            self._by_layer[task.name] = task
        self.waiting[task] = None
        self._launcher.wait(task)
        self.deferred += 1
        if task.is_layer or not outcome.views:  # views are free on emulated devices
            self._spend()
        return filled(outcome.result, results)

    def _launch_here(self, call: Call) -> Any:
        result = call.run(call.args, call.kwargs)
        self.launched.append(call.name)
        woken = self._turns.launch(call.name)
        if self.waiting:
            self._wake(woken)
        return result

    def _launch_tasks(self, tasks: Iterable[Task]) -> None:
        """Launch tasks, and all that they need, in the code's order; then what these let go."""
        closure: dict[Task, None] = {}
        stack = list(tasks)
        while stack:
            task = stack.pop()
            if task.waits and task not in closure:
                closure[task] = None
                stack += task.needs
        for task in sorted(closure, key=lambda task: task.number):
            self._launch(task)
        self._drain()

    def _wake(self, layers: Iterable[str]) -> None:
        """Give these layers their turn, and launch all tasks that are ready."""
        self._give_turns(layers)
        self._drain()

    def _drain(self) -> None:
        if self._draining:  # the outer call continues after this launch
            return
        self._draining = True
        try:
            while self._ready:
                self._launch(self._ready.popleft())
        finally:
            self._draining = False

    def _launch(self, task: Task) -> None:
        if not task.waits:
            return
        task.waits = False
        self.waiting.pop(task, None)
        values, followers = task.values, task.followers
        task.values, task.followers, task.needs = [], [], []
        outer, self.launching = self.launching, True
        modes = dispatch_modes() if dispatch_mode_count() > self._modes[1] else None
        try:
            if (
                modes is not None
            ):  # modes of the code that needs it now, which was not in them when it called it
                set_dispatch_modes(modes[: self._modes[1]])
            box = [self._launcher.run(task)]  # in a list, so that nothing else refers to the result
            task.run = None
            made = hand_over(task, values, self._step.becomes, box)
            if task.is_layer and len(made) == 1:
                self._step.send_ahead(task.name, made[0])
        except BaseException as error:
            self._drop_all([task, *followers], error)
            raise
        finally:
            self.launching = outer
            if modes is not None:
                set_dispatch_modes(modes)
        task.owner = None
        if task.is_layer:
            self.launched.append(task.name)
            self._give_turns(self._turns.launch(task.name))
        for follower in followers:
            self._less_missing(follower)

    def _drop_all(self, tasks: list[Task], error: BaseException) -> None:
        """Drop tasks, and all that need them: the code may catch the error, and go on."""
        while tasks:
            task = tasks.pop()
            if task.owner is self:
                tasks += task.followers
                self.waiting.pop(task, None)
                if task.is_layer:  # a function may have the name of a layer
                    self._by_layer.pop(task.name, None)
                task.owner, task.waits, task.run = Failed(error), False, None
                task.needs, task.followers, task.values = [], [], []

    def _give_turns(self, layers: Iterable[str]) -> None:
        for layer in layers:
            task = self._by_layer.pop(layer, None)
            if task is not None:
                self._less_missing(task)

    def _less_missing(self, task: Task) -> None:
        task.missing -= 1
        if not task.missing and task.waits:
            self._ready.append(task)


class Failed:
    """Takes the place of a failed step's schedule.

    It keeps the error's text only: the error would keep the step's frames and their tensors alive.

    Args:
        error: why the step failed.
    """

    def __init__(self, error: BaseException) -> None:
        self._reason = f"{type(error).__name__}: {error}"

    def force(self, tasks: Iterable[Task], reason: str) -> None:
        """Raise, since no value of the step can be computed any more."""
        raise BaechiError(
            f"{reason}, but it was never computed: the step that it belongs to failed ({self._reason})"
        )


_Versions = list[tuple[torch.Tensor, int]]
"""Tensors, each with how often it was written."""


def _versions(read: Iterable[torch.Tensor]) -> _Versions:
    """Those that are there already, as they are now."""
    return [(tensor, version_of(tensor)) for tensor in read if type(tensor) is not Deferred]


def _launch_as_reached(call: Call, caller: CallerState, read: _Versions, held: Held | None = None) -> Any:
    """Launch a call as its caller was when the code reached it; what it reads must be what it was then."""
    what = ""
    if any(version_of(tensor) != version for tensor, version in read):
        what = "what it reads was written"
    if held is not None and not held.is_as_noted():
        what = "it was changed (an attribute, a weight or a hook)"
    if what:
        raise BaechiError(
            f"{call.name}: {what} after the model's code called it and before it launched, in the plan's "
            "order. Run this model with reorder=False"
        )
    with caller.restored():
        return call.run(call.args, call.kwargs)


def _tensors_alone(call: Call) -> list[torch.Tensor] | None:
    """The tensors among a layer's arguments, if these are tensors and constants only."""
    given = []
    for value in (*call.args, *call.kwargs.values()):
        if type(value) in (torch.Tensor, nn.Parameter, Deferred):
            given.append(value)
        elif type(value) not in (type(None), bool, int, float, str, torch.dtype):
            return None
    return given


def _modes() -> tuple[int, int]:
    return function_mode_count(), dispatch_mode_count()


def _copied(value: Any) -> Any:
    """Plain arguments with lists of their own: the code may change its lists before the call launches."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return type(value)([_copied(item) for item in value]) if type(value) in (list, tuple) else value
