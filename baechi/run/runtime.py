"""The state of a distributed model: its plan, its devices, and the open step of each thread."""

import functools
import itertools
import threading
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

import torch
from torch import nn

from baechi.backend import backend_of
from baechi.backend.ranks.devices import RankDevices
from baechi.backend.sends import wait_for_all_sends
from baechi.order import LaunchOrder, waiting_layers
from baechi.records.device import HostWork
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.run.guards.entrances import entrances_watched
from baechi.run.plan_facts import readers_and_writers, receivers
from baechi.run.reorder.launchers import HostLauncher, Launcher, ThreadLauncher
from baechi.run.reorder.outcome import Outcomes
from baechi.run.reorder.schedule import Forced, Schedule, has_hooks_inside, reordering_is_off
from baechi.run.steady.layers import LayerFacts
from baechi.run.step.call_sites import moves_of
from baechi.run.step.glue import GlueMode
from baechi.run.step.step import Step
from baechi.split.cuts import Cut, cuts_of
from baechi.torchlib.elsewhere import StandIns
from baechi.torchlib.private.autograd import call_after_backward, current_graph_task_id, views_replayed
from baechi.torchlib.private.modes import function_modes
from baechi.torchlib.shards.gradients import leaves_of

if TYPE_CHECKING:  # they hold a runtime, or take one
    from baechi.run.pipeline.batch.judge import Case
    from baechi.run.pipeline.microbatches import Microbatches
    from baechi.run.programs.capture import Captures
    from baechi.run.ranks.schedule import Schedule as RankSchedule
    from baechi.run.weights.replicas import Replicas

Reorder = bool | Literal["host", "threads"]


class _Thread(threading.local):
    """What a thread has open."""

    glue: GlueMode | None = None
    backward: int | None = None
    """The backward until whose end the step lasts; None for a step of a call."""


class Runtime:
    """The runtime of one distributed model.

    It holds no module: wrappers find it through their module, so a deep copy of the model gets a
    runtime of its own and computes with its own weights.

    Args:
        plan: where each layer runs.
        reorder: whether layers launch in the plan's order; `"host"` (as True) and `"threads"` choose the
            thread that launches a layer which had to wait.
    """

    def __init__(self, plan: Plan, *, reorder: Reorder = True) -> None:
        self.plan = plan
        self.reorder = reorder
        self.outcomes = Outcomes(len(plan.graph))
        self.turns: Iterator[int] = itertools.count(1)
        self.counts: dict[str, int] = {}
        self.forced: list[Forced] = []
        self.launched: list[str] = []
        self.backend = backend_of(plan.cluster)
        self.settled = True
        self.session: object = None
        self.optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None
        self.layers: dict[str, LayerFacts] = {}
        self._finders: dict[str, Callable[[torch.Tensor], bool]] = {}
        self.full: list[str] = []
        """The layers and functional ops that took the full path in the last step; see `run.steady`."""
        self.blocks: tuple[str, ...] = ()
        """The modules that `distribute` compiled."""
        self.microbatches: Microbatches | None = None
        """How a step is split into microbatches (`run.pipeline`); None if it is not."""
        self.captures: Captures | None = None
        """The model's step as programs (`run.programs`); None if it runs as its code is written."""
        self.over_ranks = isinstance(self.backend, RankDevices)
        """Whether each device belongs to a process of its own (`run.ranks`)."""
        self.stand_ins = StandIns()
        """Over ranks, what stands in for weights of others while the model's code is captured."""
        self.look_in_ranks: Callable[[nn.Module, Runtime, Microbatches, Case], None] | None = None
        """Over ranks, looks at a batch (`run.ranks.looks`)."""
        self.schedules: dict[Hashable, RankSchedule] = {}
        """Over ranks, what all of them do in each kind of call."""
        self.ranked_steps = 0
        """Over ranks, how many steps all of them took."""
        self.goes_back_in_parts = False
        """Whether microbatches go backward now; else a step that ran whole does."""
        self.weight_owners: MutableMapping[int, nn.Module] = WeakValueDictionary()
        """By sharded weight, the layer that ran with it, where functional ops read it, too."""
        self.replicas: Replicas | None = None
        """The processes that train the same sharded weights (`run.weights.replicated`); None if alone."""
        self._in_training = plan.graph.training
        self._only_read, self.writes_given = readers_and_writers(plan)
        self.readers = dict(receivers(plan))
        self._senders = frozenset(plan.graph.module_of(call) for call in self.readers)
        reaching = [node for node, costs in plan.graph.placed_costs() if costs.reaches]
        self.reaching = frozenset(plan.graph.module_of(node) for node in reaching)
        self.outputs_stay = plan.graph.outputs_stay or bool(plan.cluster.ranks)
        """Whether outputs stay where they were made; else they go to where the inputs lie."""
        self.moves = moves_of(plan)
        """The functional ops that the plan places elsewhere than what they follow."""
        self.measure: Callable[[], Timeline] | None = None
        self._thread = _Thread()

    @property
    def glue(self) -> GlueMode | None:
        """The glue mode of this thread's open step; None outside a step.

        Reading it closes a step that `step_until_backward_ends` opened for a backward that is over.
        """
        thread = self._thread
        if thread.backward is not None and thread.backward != current_graph_task_id():
            self._close_backward()
            return None
        return thread.glue

    @property
    def programs(self) -> "Captures":
        """The captures of a model whose step runs as programs."""
        assert self.captures is not None
        return self.captures

    def facts_of(self, module: nn.Module, seat: tuple[str, str]) -> LayerFacts:
        """What is known of a layer from call to call."""
        name, device = seat
        facts = self.layers.get(name)
        if facts is None:
            here = self._finders.get(device)
            if here is None:
                here = self._finders[device] = self.backend.finder(device)
            flags = {
                "reaches": name in self.reaching,
                "sends": name in self._senders,
                "reads": name in self._only_read,
                "in_training": self._in_training,
            }
            facts = self.layers[name] = LayerFacts(module, name, device, here, **flags)
        return facts

    @cached_property
    def cuts(self) -> dict[str, Cut]:
        """Where the weights of split layers are cut."""
        return cuts_of(self.plan.graph)

    @cached_property
    def leaves_sharded(self) -> bool:
        """Whether outputs of a split layer may stay sharded."""
        joins = {costs.joins for _, costs in self.plan.graph.placed_costs()}
        return any(
            costs.shard["of"] not in joins for _, costs in self.plan.graph.placed_costs() if costs.shard
        )

    @cached_property
    def order(self) -> LaunchOrder:
        """The launch order of the plan, and that of the code."""
        return LaunchOrder.of(self.plan)

    @cached_property
    def may_wait(self) -> bool:
        """Whether some layer must wait if the code runs as it was captured."""
        return bool(waiting_layers(self.order))

    def schedule(self, glue: GlueMode, root: nn.Module) -> Schedule | None:
        """A schedule for a new step; None if layers launch in the code's order."""
        if not self.reorder or not self.may_wait or reordering_is_off() or has_hooks_inside(root):
            return None
        backend, threads = self.backend, self.reorder == "threads"
        launcher: Launcher = ThreadLauncher(backend) if threads else HostLauncher()
        work: HostWork = "waiting_layer_threads" if threads else "waiting_layer"
        spend = functools.partial(backend.spend, work, backend.host)
        return Schedule(self.order, launcher, self.outcomes, glue, spend)

    def aside(self) -> AbstractContextManager[None]:
        """Within this context the glue mode of the open step is off: what runs is no code of the model."""
        glue = self._thread.glue
        assert glue is not None
        return glue.off()

    @contextmanager
    def opened(self, glue: GlueMode) -> Iterator[None]:
        """Within this context a step is open in this thread."""
        try:
            self._thread.glue = glue  # in `try`: an interrupt after it leaves no step open
            with views_replayed(), glue, entrances_watched(glue):
                yield
        finally:
            self._thread.glue = None

    def step_until_backward_ends(self) -> None:
        """Open a step in this thread until the running backward ends.

        Activation checkpointing recomputes the model's code in backward, outside any call of the root. The
        first thing the runtime sees of it is a layer, and functional ops (glue) after it need the mode. The
        autograd engine takes modes off the stack after each node, so the mode may have to be set again.
        """
        if self.glue is None:
            step = Step(self.backend, self)
            step.one_device = False
            if self.goes_back_in_parts:  # what runs again saves what lanes have saved
                step.shards_of = leaves_of
            self._thread.glue = GlueMode(step)
            self._thread.backward = current_graph_task_id()
            call_after_backward(functools.partial(self._backward_ended, threading.get_ident()))
        glue = self._thread.glue
        assert glue is not None
        if glue.step.inside is None and glue not in function_modes():
            glue.__enter__()  # type: ignore[no-untyped-call]

    def _backward_ended(self, thread: int) -> None:
        wait_for_all_sends(self.backend)  # recomputed layers were lent weights, which the optimizer writes
        # The engine may call this in another thread. Then the next read of `glue` closes the step.
        if thread == threading.get_ident() and self._thread.backward is not None:
            self._close_backward()

    def _close_backward(self) -> None:
        if self._thread.glue is not None:
            self._thread.glue.leave()
        self._thread.glue = self._thread.backward = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Runtime":
        copied = _runtime_of(self.plan, self.reorder, self._microbatches_anew(), self._captures_anew())
        memo[id(self)] = copied
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return (_runtime_of, (self.plan, self.reorder, self._microbatches_anew(), self._captures_anew()))

    def _microbatches_anew(self) -> "Microbatches | None":
        return None if self.microbatches is None else self.microbatches.anew()

    def _captures_anew(self) -> "Captures | None":
        return None if self.captures is None else self.captures.anew()


def _runtime_of(
    plan: Plan, reorder: Reorder, microbatches: "Microbatches | None", captures: "Captures | None"
) -> Runtime:
    runtime = Runtime(plan, reorder=reorder)
    runtime.microbatches, runtime.captures = microbatches, captures
    runtime.settled = False  # copies and pickles lose the marks that say where weights lie
    return runtime
