"""What a distributed model carries with it: the plan, the devices, and the step in flight."""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

from baechi.backend import backend_of
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.run.glue import GlueMode
from baechi.run.step import Step

_NAME = "_baechi"


class Runtime:
    """One distributed model's runtime.

    It holds no module: wrappers find it through their module, so a deep copy of the model gets a
    runtime of its own and computes with its own weights.

    Args:
        plan: where each layer runs.
        reorder: whether layers launch in the plan's order.
    """

    def __init__(self, plan: Plan, *, reorder: bool = True) -> None:
        self.plan = plan
        self.reorder = reorder
        self.backend = backend_of(plan.cluster)
        self.settled = True
        self.session: object = None
        self.only_read = frozenset(_only_readers(plan))
        self.measure: Callable[[], Timeline] | None = None
        self._thread = threading.local()

    @property
    def glue(self) -> GlueMode | None:
        """The mode of the step that this thread is in; None outside a step."""
        glue: GlueMode | None = getattr(self._thread, "glue", None)
        backward = getattr(self._thread, "backward", None)
        if backward is not None and backward != torch._C._current_graph_task_id():
            self._close_backward()
            return None
        return glue

    @contextmanager
    def step(self) -> Iterator[Step]:
        """Open a step in this thread."""
        step = Step(self.backend)
        glue = GlueMode(step)
        try:
            with self.backend.step() as self.measure:
                self._thread.glue = glue
                with glue:
                    yield step
        finally:
            self._thread.glue = None

    def step_until_backward_ends(self) -> None:
        """Open a step in this thread for as long as the backward that it is in.

        Activation checkpointing runs code of the model again in backward, below any module call:
        a layer is the first that we see of it, and the glue after it needs the mode. The engine
        takes modes off the stack after each autograd node, so it may have to go on again.
        """
        if self.glue is None:
            self._thread.glue = GlueMode(Step(self.backend))
            self._thread.backward = torch._C._current_graph_task_id()
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(functools.partial(self._backward_ended, threading.get_ident()))
        if self._thread.glue not in _get_current_function_mode_stack():
            self._thread.glue.__enter__()

    def _backward_ended(self, thread: int) -> None:
        # the engine may call from another thread: then the next look at `glue` closes the step
        if thread == threading.get_ident() and getattr(self._thread, "backward", None) is not None:
            self._close_backward()

    def _close_backward(self) -> None:
        self._thread.glue.leave()
        self._thread.glue = self._thread.backward = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Runtime":
        copied = _runtime_of(self.plan, self.reorder)
        memo[id(self)] = copied
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return (_runtime_of, (self.plan, self.reorder))


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


def bind(module: nn.Module, binding: Binding) -> None:
    """Tie a module to a runtime."""
    module.__dict__[_NAME] = binding


def unbind(module: nn.Module) -> None:
    """Undo `bind`."""
    module.__dict__.pop(_NAME, None)


def binding_of(module: nn.Module) -> Binding | None:
    """What ties a module to its runtime, if something does."""
    binding: Binding | None = module.__dict__.get(_NAME)
    return binding


def _runtime_of(plan: Plan, reorder: bool) -> Runtime:
    runtime = Runtime(plan, reorder=reorder)
    runtime.settled = False  # marks of where weights lie do not travel with copies and pickles
    return runtime


def _only_readers(plan: Plan) -> Iterator[str]:
    """Modules of which no call writes in place what others read."""
    writers = {_module(plan, node) for node, writes in plan.graph.nodes(data="writes") if writes}
    for node in plan.graph.placed():
        if _module(plan, node) not in writers:
            yield _module(plan, node)


def _module(plan: Plan, node: str) -> str:
    return str(plan.graph.nodes[node].get("module", node))
