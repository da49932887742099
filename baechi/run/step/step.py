"""One call of the root module: its transfers, and the copies that are still valid."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.backend.sends import wait_for_all_sends, wait_for_readers, wait_for_sends
from baechi.backend.transfer import arrive, depart, takes_two_nodes, transfer
from baechi.run.model_runtime import ModelRuntime
from baechi.run.sharded.output import ShardedOutput, settled
from baechi.run.steady import paths
from baechi.run.step.boundary import Boundary
from baechi.run.step.call import Reorderer
from baechi.run.step.call_sites import CallSites
from baechi.run.step.copies import Copy, state_of
from baechi.run.step.lender import lent
from baechi.run.step.loans import Loans, version_of
from baechi.torchlib.shards.gradients import shards_of
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in
from baechi.torchlib.tensors.storage import note_write, stamp
from baechi.torchlib.tensors.weak_table import WeakTable

Key = tuple[str, int, int, Any]


class Step:
    """The state of one step; it is discarded when the step is over.

    Args:
        backend: the devices.
        runtime: the runtime that the step belongs to.
    """

    shards_of = staticmethod(shards_of)

    def __init__(self, backend: AbstractBackend, runtime: ModelRuntime) -> None:
        self.backend = backend
        self.runtime = runtime
        self.boundary: Boundary | None = None
        """What asks at the boundaries between the parts of a microbatch; None if there are none."""
        self.after: Any = None
        """The event after which what is sent now may be read; None for all that was issued so far."""
        self.reorder: Reorderer | None = None
        """Lets layers wait; None if they launch in the code's order."""
        self.home: str | None = None
        """Where the first input lies; None if there is none."""
        self.one_device = True
        """Whether the model's own code runs, which was written for one device. In backward it runs only in
        regions that are checkpointed; between them torch compares what these save, devices included."""
        self.inside: str | None = None
        """The device of the layer that runs now; None between layers."""
        self.short = not paths.full_only
        """Whether calls may take the fast path; see `run.steady`."""
        self.swift = False
        """Whether a layer may take the fast path: nothing can wait in the step; see `run.plain_step`."""
        self.sites: CallSites | None = None
        """Where the step is in the code, if the plan places functional ops by themselves."""
        self.bare: frozenset[str] = frozenset()
        """The devices at which nothing has to be done around what runs: no stream, no clock."""
        self.readers: dict[str, tuple[str, ...]] = runtime.readers
        self.turns: Iterator[int] = runtime.turns
        self.full: list[str] = []
        """The layers and functional ops that took the full path."""
        self._calls: dict[str, int] = {}
        # by tensor, then by place, version and grad mode (of a microbatch: the part that reads it)
        self._copies: WeakTable[dict[Key, Copy]] = WeakTable()

    def bring(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        """Bring a tensor to a device: itself if it lies there, else its copy, made once.

        After an in-place write to the tensor or to its copy, a new copy is made.
        """
        here = self.backend.place_of(tensor)
        if here == place or self.backend.claim(tensor, place):
            return tensor
        if tensor.is_meta and tensor.is_nested:  # torch's nested tensors carry one without values
            return tensor
        unrecorded = not torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        if unrecorded and tensor.grad_fn is not None:  # code that records made it: both read the same copy
            with torch.enable_grad():
                return self.bring(tensor, place)
        slots = self._copies.get_or_put(tensor, dict)
        key = (place, *state_of(tensor))
        copy = slots.get(key)
        if copy is None or (copy.way is None and copy.version != version_of(copy.tensor)):
            copy = slots[key] = self._sent(tensor, here, place)
        if copy.way is not None:
            copy.tensor, copy.way = arrive(copy.tensor, copy.way), None
            copy.version = version_of(copy.tensor)
        return copy.tensor

    def send_ahead(self, call: str, result: Any) -> None:
        """Send a layer's output to the devices that will read it under the plan."""
        readers = self.readers.get(call)
        if readers is not None and isinstance(result, torch.Tensor):
            self.push(result, readers)

    def push(self, tensor: torch.Tensor, places: Iterable[str]) -> None:
        """Send a tensor ahead to the devices that will read it."""
        here = self.backend.place_of(tensor)
        slots, state = self._copies.get_or_put(tensor, dict), state_of(tensor)
        for place in places:
            key = (place, *state)
            if place != here and key not in slots:
                slots[key] = self._sent(tensor, here, place)

    def forget(self, tensor: torch.Tensor) -> None:
        """Forget a tensor's copies, since the tensor is about to get other memory."""
        self._copies.pop(tensor)

    def becomes(self, real: torch.Tensor, value: torch.Tensor) -> None:
        """Move the copies of a result to the deferred value that is about to become it."""
        slots = self._copies.pop(real)
        if slots is not None:
            self._copies.put(value, slots)

    def know(self, place: str, tensor: torch.Tensor, copied: torch.Tensor) -> None:
        """Note that a tensor is on a device already, as a view of a copy there."""
        self._copies.get_or_put(tensor, dict)[place, *state_of(tensor)] = Copy(
            copied, None, version_of(copied)
        )

    def _sent(self, tensor: torch.Tensor, here: str, place: str) -> Copy:
        if torch.is_inference_mode_enabled():  # inference tensors have no version counter
            with torch.inference_mode(False), torch.no_grad():
                return self._sent(tensor, here, place)
        if takes_two_nodes(tensor):
            return Copy(*depart(tensor, self.backend, place, self.after, here))
        copied = transfer(tensor, self.backend, place)
        return Copy(copied, None, version_of(copied))

    def bring_home(self, result: Any, inputs: Any) -> Any:
        """Bring the outputs of a model to where its inputs lie."""
        first = next(tensors_in(inputs), None)
        home = None if first is None else self.backend.place_of(first)
        if self.runtime.leaves_sharded:
            result = settled(result, self.backend, home)
        if home is None:
            return result
        # as on one device, outputs are inference tensors in inference mode
        move = self._moved if torch.is_inference_mode_enabled() else self.bring
        if isinstance(result, torch.Tensor) and not isinstance(result, ShardedOutput):
            return move(result, home)
        return map_tensors(lambda one: one if isinstance(one, ShardedOutput) else move(one, home), result)

    def _moved(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        here = self.backend.place_of(tensor)
        return tensor if here == place else transfer(tensor, self.backend, place)

    def lend(
        self, values: tuple[Any, Any], place: str, *, writes: bool = False
    ) -> tuple[tuple[Any, Any], Loans]:
        """Bring all arguments of a layer or functional op (glue) to its device."""
        return lent(self, values, place, writes=writes)

    def loans(self, place: str) -> Loans:
        """An empty record of copies."""
        return Loans(self.backend, functools.partial(self.know, place))

    def may_write(self, *values: Any) -> None:
        """Make the next operation, which may write these in place, wait for transfers that read them."""
        for tensor in tensors_in(*values):
            wait_for_readers(tensor, self.backend)
            note_write(tensor)

    def may_write_anything(self, place: str) -> None:
        """Make the next operation, which may write any tensor on a device, wait for all transfers from it."""
        wait_for_sends(self.backend, place)

    def close(self) -> None:
        """End the step: its inputs and weights belong to the caller again, who may write them."""
        wait_for_all_sends(self.backend)

    def reach(self, layer: str, args: Any, kwargs: Any) -> str:
        """Note that the code reaches a layer."""
        turn = self._calls.get(layer, 0)
        self._calls[layer] = turn + 1
        call = f"{layer}#{turn}" if turn else layer
        if self.sites is not None and self.inside is None:
            self.sites.reached(call)
        return call

    def reach_region(self, name: str, args: Any, kwargs: Any) -> None:
        """Note that the code reaches a module that backward runs again."""

    def stamp(self, result: Any, place: str | None, turn: int, *, renew: bool) -> None:
        """Mark a result with the device and the time of its making."""
        for tensor in (result,) if isinstance(result, torch.Tensor) else tensors_in(result):
            stamp(tensor, place, turn, renew=renew)
