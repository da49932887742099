"""The model at one target: launch a chunk, then bring its results.

Launching returns before a device has computed. So the next chunk's arguments travel while one computes, where
two chunks may be in flight:

    launch k      [arguments]..[compute k      ]
    launch k + 1         [arguments]..          [compute k + 1  ]
    finish k                                    [results k]
"""

from abc import ABC, abstractmethod
from collections.abc import Set
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baechi.backend import AbstractBackend
from baechi.backend.transfer import transfer
from baechi.dispatch.chunks.abstract import Arguments
from baechi.dispatch.replicas.blame import note_layer
from baechi.dispatch.replicas.buffers import OwnBuffers
from baechi.errors import note_where
from baechi.run.step.loans import version_of
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in


@dataclass(eq=False)
class Launched:
    """A chunk that was launched.

    Args:
        results: what the model returned, where it made it.
        home: where the results go; None: they stay.
        events: after each call, where the target has streams.
        begun_s: the clock when it was launched.
        written: arguments of the caller's that the model may have written, with their copies.
        divided: whether it is a part of a call.
        taken_s: seconds that the target was busy with it, once it is finished.
    """

    results: list[Any]
    home: str | None
    events: list[Any]
    begun_s: float
    written: list[tuple[torch.Tensor, torch.Tensor, int]]
    divided: bool = False
    taken_s: float = 0.0


class AbstractReplica(ABC):
    """The model at a target.

    Args:
        name: the target's name.
        backend: the devices.

    Attributes:
        model: its modules.
        buffers: the model's, where it may write them.
        at_work: names of the targets that run in this call.
    """

    model: nn.Module

    def __init__(self, name: str, backend: AbstractBackend) -> None:
        self.name, self.backend = name, backend
        self.buffers: OwnBuffers | None = None
        self.at_work: Set[str] = frozenset()
        self._over_s = 0.0

    @abstractmethod
    def launch(self, calls: list[Arguments], *, divided: bool = False) -> Launched:
        """Launch the calls of a chunk.

        Args:
            calls: the arguments of each.
            divided: whether the chunk is a part of a call.
        """

    @abstractmethod
    def finish(self, launched: Launched) -> list[Any]:
        """Bring the results to where the input lies; the chunk is over then.

        Args:
            launched: what `launch` returned.
        """

    @abstractmethod
    def forget(self) -> None:
        """Let go of the arguments of a call."""

    def now_s(self) -> float:
        """The clock by which chunks are timed."""
        return self.backend.now_s()

    def _over(self, launched: Launched) -> None:
        if self.buffers is not None:
            self.buffers.settle(self.backend, alone=not launched.divided and len(self.at_work) < 2)
        now_s = self.now_s()
        launched.taken_s = now_s - max(launched.begun_s, self._over_s)
        self._over_s = now_s


class DeviceReplica(AbstractReplica):
    """The model on one device.

    Args:
        name: the target's name.
        backend: the devices.
        place: the device.
        model: its modules, around weights that lie there.
    """

    def __init__(self, name: str, backend: AbstractBackend, place: str, model: nn.Module) -> None:
        super().__init__(name, backend)
        self.place, self.model = place, model
        self._lent: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        self._lent_before = self._lent

    def forget(self) -> None:
        self._lent, self._lent_before = {}, {}

    def launch(self, calls: list[Arguments], *, divided: bool = False) -> Launched:
        first = next(tensors_in(calls), None)
        home = None if first is None else self.backend.place_of(first)
        launched = Launched([], home, [], self.now_s(), [], divided)
        here = self.backend.torch_device(self.place)
        self._lent, self._lent_before = {}, self._lent  # what goes whole to each chunk travels once
        at = self.backend.at(self.place, "") if home is not None else nullcontext()
        self.backend.spend("chunk", self.place, len(calls))
        for args, kwargs in calls:
            lent_args, lent_kwargs = map_tensors(lambda tensor: self._lend(tensor, launched), (args, kwargs))
            if here is not None:  # a model written for one device passes "its" device around
                lent_args = tuple([here if isinstance(arg, torch.device) else arg for arg in lent_args])
                lent_kwargs = {k: here if isinstance(v, torch.device) else v for k, v in lent_kwargs.items()}
            try:
                with at as note:
                    result = self.model(*lent_args, **lent_kwargs)
                    if note is not None:
                        note(result)
            except BaseException as error:
                note_layer(error, self.model, self.place)
                self.forget()  # a device that is full has to be free for the next try
                raise
            launched.results.append(result)
            launched.events.append(self.backend.record(self.backend.compute_stream(self.place)))
        return launched

    def _lend(self, tensor: torch.Tensor, launched: Launched) -> torch.Tensor:
        if self.backend.place_of(tensor) == self.place:
            return tensor
        if self.backend.claim(tensor, self.place):
            return tensor
        known = self._lent.get(id(tensor)) or self._lent_before.get(id(tensor))
        if known is None or known[0] is not tensor or version_of(known[1]) != known[2]:
            copied = transfer(self._pinned(tensor), self.backend, self.place)
            known = tensor, copied, version_of(copied)
        self._lent[id(tensor)] = known
        if not known[1].is_inference():
            launched.written.append(known)
        return known[1]

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same in memory that a device with streams reads by itself, beside its computing."""
        has_streams = self.backend.compute_stream(self.place) is not None
        real = has_streams and self.backend.kernel_device(self.place) is not None
        on_host = real and self.backend.place_of(tensor) == self.backend.host
        plain = tensor.layout == torch.strided and not tensor.is_nested
        learns = torch.is_grad_enabled() and tensor.requires_grad
        return tensor.pin_memory() if on_host and plain and not learns else tensor

    def finish(self, launched: Launched) -> list[Any]:
        home = launched.home
        results = launched.results
        if home is not None:
            events = iter(launched.events)
            results = [self._home(result, home, next(events)) for result in results]
        for original, copied, version in launched.written:
            if version_of(copied) != version:  # the model wrote its argument
                with torch.no_grad():
                    original.copy_(transfer(copied.detach(), self.backend, self.backend.place_of(original)))
        self._over(launched)
        return results

    def _home(self, result: Any, home: str, event: Any) -> Any:
        known: dict[int, torch.Tensor] = {}  # a tensor that is there twice stays one

        def bring(tensor: torch.Tensor) -> torch.Tensor:
            if self.backend.place_of(tensor) == home:
                return tensor
            if id(tensor) not in known:
                known[id(tensor)] = self._fetch(tensor, home, event)
            return known[id(tensor)]

        return map_tensors(bring, result)

    def _fetch(self, tensor: torch.Tensor, home: str, event: Any) -> torch.Tensor:
        """Bring a result home as soon as it is made, though a later chunk may be launched behind it.

        The host asks for the copy once there is something to copy: a copy that waits would keep others
        waiting.
        """
        backend = self.backend
        source = backend.place_of(tensor)
        if event is None or source != self.place or (torch.is_grad_enabled() and tensor.requires_grad):
            return transfer(tensor, backend, home)
        backend.wait_on_host(event, source)
        backend.give_way()  # meanwhile others went on
        tx, rx = backend.transfer_streams(source, home)
        backend.wait(tx, event)
        copied = backend.copy(tensor.detach(), home, (tx, rx))
        backend.use(tensor, tx)
        consumer = backend.compute_stream(home)
        backend.wait(consumer, backend.record(rx))
        backend.use(copied, consumer)
        return copied


class PlanReplica(AbstractReplica):
    """The model over several devices, distributed by a plan.

    Args:
        name: the target's name.
        backend: the plan's devices.
        model: a copy of the model that was assigned.
    """

    def __init__(self, name: str, backend: AbstractBackend, model: nn.Module) -> None:
        super().__init__(name, backend)
        self.model = model

    def launch(self, calls: list[Arguments], *, divided: bool = False) -> Launched:
        begun_s = self.now_s()
        try:
            results = [self.model(*args, **kwargs) for args, kwargs in calls]
        except BaseException as error:
            if not getattr(error, "__notes__", None):
                note_where(error, layer="(root)", kind=type(self.model).__name__, device=self.name)
            raise
        return Launched(results, None, [], begun_s, [], divided)

    def finish(self, launched: Launched) -> list[Any]:
        self._over(launched)
        return launched.results

    def forget(self) -> None:
        """It keeps none."""
