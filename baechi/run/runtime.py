"""What a distributed model carries with it: the plan, the devices, and the step in flight."""

import functools
import itertools
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import nn

from baechi.backend import backend_of
from baechi.order import LaunchOrder, waiting_layers
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.run.deferred.call import Forced
from baechi.run.foresee.foresight import Foresight
from baechi.run.guards.entrances import entrances_watched
from baechi.run.guards.hooked import HookWatch
from baechi.run.launch.host_launcher import HostLauncher
from baechi.run.launch.schedule import Schedule
from baechi.run.launch.switch import reordering_is_off
from baechi.run.launch.thread_launcher import ThreadLauncher
from baechi.run.step.glue import GlueMode
from baechi.run.step.reach import reach_aside
from baechi.run.step.step import Step
from baechi.torchlib.private.autograd import call_after_backward, current_graph_task_id
from baechi.torchlib.private.modes import function_modes

BINDING = "_baechi"
"""What ties a module to its runtime hangs on it under this name."""

Reorder = bool | Literal["host", "threads"]


class Runtime:
    """One distributed model's runtime.

    It holds no module: wrappers find it through their module, so a deep copy of the model gets a
    runtime of its own and computes with its own weights.

    Args:
        plan: where each layer runs.
        reorder: whether layers launch in the plan's order; `"host"` (as True) and `"threads"` say who
            launches what had to wait.
        stateful: modules whose calls keep the code's order, since they have buffers.
    """

    def __init__(self, plan: Plan, *, reorder: Reorder = True, stateful: Collection[str] = ()) -> None:
        self.plan = plan
        self.reorder = reorder
        self.stateful = frozenset(stateful)
        self.foresight = Foresight(plan)
        self.turns = itertools.count(1)
        self.counts: dict[str, int] = {}
        self.forced: list[Forced] = []
        self.launched: list[str] = []
        self.backend = backend_of(plan.cluster)
        self.settled = True
        self.session: object = None
        self.optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None
        self._in_training = plan.graph.training
        self._only_read, self.writes_given = _readers_and_writers(plan)
        self.readers = dict(_readers(plan))
        reaching = [node for node, costs in plan.graph.placed_costs() if costs.reaches]
        self.reaching = frozenset(plan.graph.module_of(node) for node in reaching)
        self.measure: Callable[[], Timeline] | None = None
        self._hooks = HookWatch()
        self._thread = threading.local()

    @property
    def glue(self) -> GlueMode | None:
        """The mode of the step that this thread is in; None outside a step."""
        glue: GlueMode | None = getattr(self._thread, "glue", None)
        backward = getattr(self._thread, "backward", None)
        if backward is not None and backward != current_graph_task_id():
            self._close_backward()
            return None
        return glue

    def only_reads(self, module: str, *, training: bool) -> bool:
        """Whether a layer is known to write nothing that others read.

        Args:
            module: its module.
            training: whether it is in training now: what was captured for inference says nothing of that.
        """
        return module in self._only_read and (self._in_training or not training)

    @cached_property
    def order(self) -> LaunchOrder:
        """The plan's order, and the code's."""
        return LaunchOrder.of(self.plan, stateful=self.stateful)

    @cached_property
    def may_wait(self) -> bool:
        """Whether some layer waits when the code runs as it did when it was captured."""
        return bool(waiting_layers(self.order))

    def schedule(self, glue: GlueMode) -> Schedule | None:
        """A schedule for a new step; None if layers launch in the code's order.

        Args:
            glue: the step's mode; it must be off.
        """
        if not self.reorder or not self.may_wait or reordering_is_off():
            return None
        launcher = ThreadLauncher(self.backend) if self.reorder == "threads" else HostLauncher()
        step = glue.step
        aside = functools.partial(_modes_off, glue)
        return Schedule(self.order, launcher, aside, step.becomes, step.send_ahead, self.backend.draw_at)

    @contextmanager
    def step(self, root: nn.Module) -> Iterator[Step]:
        """Open a step in this thread.

        Args:
            root: the module that is called: the model, or a part of it.
        """
        step = Step(self.backend, self)
        glue = GlueMode(step)
        try:
            with self.backend.step() as self.measure:
                self._thread.glue = glue
                step.schedule = schedule = self.schedule(glue)
                self.forced, self.launched, self.counts = [], [], {}
                try:
                    with glue, entrances_watched(glue):
                        if schedule is None:
                            yield step
                        else:
                            with self._hooks.watched(root):
                                yield from self._scheduled(step, schedule)
                finally:
                    step.close()
        finally:
            self._thread.glue = None

    def _scheduled(self, step: Step, schedule: Schedule) -> Iterator[Step]:
        try:
            yield step
        except BaseException as error:
            schedule.drop(error)
            raise
        finally:
            step.schedule = None
            self.forced, self.launched = schedule.forced, schedule.pending.launched
            self.counts = schedule.counts

    def step_until_backward_ends(self) -> None:
        """Open a step in this thread for as long as the backward that it is in.

        Activation checkpointing runs code of the model again in backward, below any module call:
        a layer is the first that we see of it, and the glue after it needs the mode. The engine
        takes modes off the stack after each autograd node, so it may have to go on again.
        """
        if self.glue is None:
            self._thread.glue = GlueMode(Step(self.backend, self))
            self._thread.backward = current_graph_task_id()
            call_after_backward(functools.partial(self._backward_ended, threading.get_ident()))
        glue: GlueMode = self._thread.glue
        if glue.step.inside is None and glue not in function_modes():
            glue.__enter__()  # type: ignore[no-untyped-call]

    def _backward_ended(self, thread: int) -> None:
        # the engine may call from another thread: then the next look at `glue` closes the step
        if thread == threading.get_ident() and getattr(self._thread, "backward", None) is not None:
            self._close_backward()

    def _close_backward(self) -> None:
        self._thread.glue.leave()
        self._thread.glue = self._thread.backward = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Runtime":
        copied = _runtime_of(self.plan, self.reorder, self.stateful)
        memo[id(self)] = copied
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return (_runtime_of, (self.plan, self.reorder, self.stateful))


@dataclass(frozen=True)
class Binding:
    """What ties a module to its runtime.

    Args:
        runtime: the runtime, shared by all modules of a model.
        name: the module's qualified name.
        device: where a layer with weights runs (those without are in `shares`); None for the root
            and for parts, which call layers on several devices.
    """

    runtime: Runtime
    name: str
    device: str | None = None

    @cached_property
    def seat(self) -> tuple[str, str]:
        """Name and device of a layer."""
        assert self.device is not None
        return self.name, self.device


@contextmanager
def _modes_off(glue: GlueMode) -> Iterator[None]:
    """What launches inside is no code of the model's, and none of the layer that asked for it."""
    with glue.off(), reach_aside():
        yield


def bind(module: nn.Module, binding: Binding) -> None:
    """Tie a module to a runtime."""
    module.__dict__[BINDING] = binding


def unbind(module: nn.Module) -> None:
    """Undo `bind`."""
    module.__dict__.pop(BINDING, None)


def binding_of(module: nn.Module) -> Binding | None:
    """What ties a module to its runtime, if something does."""
    binding: Binding | None = module.__dict__.get(BINDING)
    return binding


def _runtime_of(plan: Plan, reorder: Reorder, stateful: Collection[str]) -> Runtime:
    runtime = Runtime(plan, reorder=reorder, stateful=stateful)
    runtime.settled = False  # marks of where weights lie do not travel with copies and pickles
    return runtime


def _readers_and_writers(plan: Plan) -> tuple[frozenset[str], frozenset[str]]:
    """Modules that write nothing that others read, and those that write only what they are given.

    Of a module that did not run when the model was captured nothing is known.
    """
    writes: dict[str, set[str]] = {}
    for node, costs in plan.graph.placed_costs():
        if not costs.unread:
            kinds = writes.setdefault(plan.graph.module_of(node), set())
            if costs.writes:
                kinds.add(costs.writes)
    only_read = frozenset(module for module, kinds in writes.items() if not kinds)
    return only_read, frozenset(module for module, kinds in writes.items() if kinds == {"given"})


def _readers(plan: Plan) -> Iterator[tuple[str, tuple[str, ...]]]:
    """By layer, the other devices that read what it returns, in the order in which the code does.

    A view of that, or one of several tensors, is another tensor: it travels when somebody asks for it. So
    does what the host reads, who would wait until it is there.
    """
    on_host, graph = plan.cluster.on_host, plan.graph
    for node in plan.graph.placed():
        own = plan.device_of[node]
        edges = {reader: graph.edge_costs(node, reader) for reader in graph.successors(node)}
        reading = [
            plan.device_of[reader]
            for reader, costs in edges.items()
            if not costs.order_only and not costs.on_demand
        ]
        others = tuple(dict.fromkeys([d for d in reading if d != own and d not in on_host]))
        if others:
            yield node, others
