"""What a dispatched model keeps from call to call: replicas here, or worker processes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from baechi.dispatch.replicas.replicas import Replicas
from baechi.dispatch.schedulers.targets import Target
from baechi.dispatch.workers.abstract import AbstractWorkers
from baechi.dispatch.workers.inline import InlineWorkers
from baechi.dispatch.workers.processes import ProcessWorkers
from baechi.dispatch.workers.recipe import Recipe, SharedModel, factory_recipe
from baechi.dispatch.workers.threads import ThreadWorkers
from baechi.errors import FatalError
from baechi.run.assign import refuse_distributed


class AbstractSession(ABC):
    """The targets of a dispatched model.

    Attributes:
        is_local: whether they are in this process.
    """

    is_local: bool

    @abstractmethod
    def begin(self) -> None:
        """A call begins: see what changed on the master."""

    @abstractmethod
    def step(self) -> AbstractContextManager[Any]:
        """Encloses what a call does."""

    @abstractmethod
    def workers(self) -> AbstractWorkers:
        """Who runs the chunks of a call."""

    @abstractmethod
    def end(self) -> None:
        """A call is over: let go of what it had."""

    @abstractmethod
    def stale(self) -> None:
        """Copy everything again at the next call."""

    @abstractmethod
    def close(self) -> None:
        """End all workers that outlive a call."""


class LocalSession(AbstractSession):
    """Replicas in this process.

    Args:
        model: the master.
        targets: where they lie.
        threads: whether each has a thread.
    """

    is_local = True

    def __init__(self, model: nn.Module, targets: Sequence[Target], *, threads: bool) -> None:
        self.replicas, self._threads = Replicas(model, targets), threads

    def begin(self) -> None:
        self.replicas.begin()

    def step(self) -> AbstractContextManager[Any]:
        return self.replicas.backend.step()

    def workers(self) -> AbstractWorkers:
        backend = self.replicas.backend
        if self._threads:
            return ThreadWorkers(self.replicas.at, backend)
        return InlineWorkers(self.replicas.at, backend.now_s)

    def end(self) -> None:
        self.replicas.end()

    def stale(self) -> None:
        self.replicas.stale()

    def close(self) -> None:
        """Threads end with each call."""


class ProcessSession(AbstractSession):
    """Worker processes.

    Args:
        model: the caller's model, or a factory.
        targets: where they run.
        timeout_s: how long a chunk may take.

    Raises:
        FatalError: a target is a plan, or emulated.
    """

    is_local = False

    def __init__(
        self, model: nn.Module | Callable[[], nn.Module], targets: Sequence[Target], timeout_s: float | None
    ) -> None:
        for target in targets:
            if target.plan is not None or (target.cluster is not None and target.cluster.emulated):
                raise FatalError(
                    f"target {target.name} is {'a plan' if target.plan is not None else 'emulated'}: worker "
                    "processes take devices that torch knows, one each; use workers='thread'"
                )
        self._model = model
        self._shared: SharedModel | None = None
        self._told: tuple[int, bytes] = 0, b""
        self._stale = False
        self._seed = torch.initial_seed()
        self._factory: Recipe | None = None
        self.pool = ProcessWorkers(targets, self._recipe, timeout_s)

    def begin(self) -> None:
        model = self._model
        if not isinstance(model, nn.Module):
            if self._factory is None:
                self._factory = factory_recipe(model, self._seed)
            return
        stale, self._stale = self._stale, False
        if self._shared is None or not self._shared.refresh(everything=stale):
            refuse_distributed(model)
            self.pool.close()
            self._shared = SharedModel(model)
            self._shared.refresh()
        now = self._shared.version, self._shared.modules
        if now[0] != self._told[0] or stale:
            self.pool.tell("weights")
        if now[1] != self._told[1]:
            self.pool.tell("modules", now[1])
        self._told = now

    def _recipe(self) -> Recipe:
        if self._shared is not None:
            return self._shared.recipe()
        assert self._factory is not None
        return self._factory

    def step(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def workers(self) -> AbstractWorkers:
        return self.pool

    def end(self) -> None:
        """Its workers keep nothing."""

    def stale(self) -> None:
        self._stale = True

    def close(self) -> None:
        self.pool.close()
