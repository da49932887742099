"""One call of the root module: what travelled, and the copies that are still good."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from baechi.backend import AbstractBackend
from baechi.backend.sends import wait_for_readers, wait_for_sends
from baechi.backend.transfer import (
    Way,
    arrive,
    depart,
    takes_two_nodes,
    transfer,
)
from baechi.run.launch.schedule import Schedule
from baechi.run.step.aliases import common_bases, same_view
from baechi.run.step.loans import Loans, version_of
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in
from baechi.torchlib.tensors.storage import mark_of, note_write, stamp

_Key = tuple[str, int, int, bool]


@dataclass(slots=True)
class _Copy:
    """A tensor elsewhere: on its way, or as it arrived, with its version then."""

    tensor: torch.Tensor
    way: Way | None
    version: int = 0


class Step:
    """The state of one step; gone when the step is over.

    Args:
        backend: the devices.
        runtime: whose step it is.
    """

    def __init__(self, backend: AbstractBackend, runtime: Any = None) -> None:
        self.backend = backend
        self.runtime = runtime
        self.schedule: Schedule | None = None
        self.inside: str | None = None
        """The device of the layer that runs now; None between layers."""
        self._calls: dict[str, int] = {}
        # by tensor, then by place, version and grad mode
        self._copies = WeakTensorKeyDictionary()

    def bring(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        """A tensor at a place: itself if it lies there, else its copy there, made once.

        A tensor that was written since is another tensor, and so is a copy that was written.

        Args:
            tensor: any tensor.
            place: a device's name, or another place.

        Returns:
            A tensor with the same values and layout; its gradient finds the way back.
        """
        if self.backend.place_of(tensor) == place or self.backend.claim(tensor, place):
            return tensor
        if tensor.is_meta and tensor.is_nested:  # torch makes nested tensors with one that has no values
            return tensor
        slots: dict[_Key, _Copy] = self._copies.setdefault(tensor, {})
        key = (place, *_writes_of(tensor), torch.is_grad_enabled())
        copy = slots.get(key)
        if copy is None or (copy.way is None and copy.version != version_of(copy.tensor)):
            copy = slots[key] = self._sent(tensor, place)
        if copy.way is not None:
            copy.tensor, copy.way = arrive(copy.tensor, copy.way), None
            copy.version = version_of(copy.tensor)
        return copy.tensor

    def send_ahead(self, call: str, result: Any) -> None:
        """Send what a layer made to the devices that will read it, as the plan says.

        Args:
            call: the layer's name, with the number of its call.
            result: what it returned; several tensors wait until they are asked for.
        """
        readers = self.runtime.readers.get(call)
        if readers is not None and isinstance(result, torch.Tensor):
            self.push(result, readers)

    def push(self, tensor: torch.Tensor, places: Iterable[str]) -> None:
        """Send a tensor ahead to the devices that will read it.

        Args:
            tensor: what was just computed.
            places: devices' names.
        """
        here = self.backend.place_of(tensor)
        for place in places:
            key = (place, *_writes_of(tensor), torch.is_grad_enabled())
            slots: dict[_Key, _Copy] = self._copies.setdefault(tensor, {})
            if place != here and key not in slots:
                slots[key] = self._sent(tensor, place)
                way = slots[key].way
                if self.schedule is not None:
                    self.schedule.launcher.note(slots[key].tensor if way is None else way.token)

    def forget(self, tensor: torch.Tensor) -> None:
        """A tensor is about to be given other memory: its copies are another tensor's.

        Args:
            tensor: the tensor.
        """
        self._copies.pop(tensor, None)

    def becomes(self, real: torch.Tensor, value: torch.Tensor) -> None:
        """A deferred value is about to become this result: copies of the one are copies of the other.

        Args:
            real: the result.
            value: the object that will be it.
        """
        slots = self._copies.pop(real, None)
        if slots is not None:
            self._copies[value] = slots

    def _know(self, place: str, tensor: torch.Tensor, copied: torch.Tensor) -> None:
        """A tensor is at a place already, as a view of a copy there."""
        slots: dict[_Key, _Copy] = self._copies.setdefault(tensor, {})
        key = (place, *_writes_of(tensor), torch.is_grad_enabled())
        slots[key] = _Copy(copied, None, version_of(copied))

    def _sent(self, tensor: torch.Tensor, place: str) -> "_Copy":
        if torch.is_inference_mode_enabled():  # tensors of that mode do not count how often they are written
            with torch.inference_mode(False), torch.no_grad():
                return self._sent(tensor, place)
        if takes_two_nodes(tensor):
            return _Copy(*depart(tensor, self.backend, place))
        copied = transfer(tensor, self.backend, place)
        return _Copy(copied, None, version_of(copied))

    def bring_home(self, result: Any, inputs: Any) -> Any:
        """Bring the outputs of a model to where its inputs lie.

        Args:
            result: what the model returned.
            inputs: what it was given.
        """
        first = next(tensors_in(inputs), None)
        if first is None:
            return result
        home = self.backend.place_of(first)
        if torch.is_inference_mode_enabled():  # as on one device, what is returned is of that mode
            return map_tensors(lambda tensor: self._moved(tensor, home), result)
        return map_tensors(lambda tensor: self.bring(tensor, home), result)

    def _moved(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        here = self.backend.place_of(tensor)
        return tensor if here == place else transfer(tensor, self.backend, place)

    def all_here(self, args: tuple[Any, ...], place: str) -> bool:
        """Whether all arguments are plain tensors that lie at a place, so that nothing is to be lent.

        Args:
            args: positional arguments.
            place: the device.
        """
        place_of = self.backend.place_of
        for value in args:
            if not isinstance(value, torch.Tensor) or place_of(value) != place:
                return False
        return True

    def lend(
        self, values: tuple[Any, Any], place: str, *, writes: bool = False
    ) -> tuple[tuple[Any, Any], Loans]:
        """Bring everything that a layer, or glue, was given to its device.

        Args:
            values: positional and keyword arguments, nested as they are.
            place: the device.
            writes: whether it may write them.

        Returns:
            The arguments at the place, and what was lent for it.
        """
        loans = Loans(self.backend, functools.partial(self._know, place))
        bases = common_bases(tensors_in(values)) if writes else {}
        views: dict[int, torch.Tensor] = {}

        def bring(tensor: torch.Tensor) -> torch.Tensor:
            base = bases.get(id(tensor), tensor)
            copied = self.bring(base, place)
            if copied is base:
                return tensor
            if id(tensor) not in views:
                views[id(tensor)] = same_view(tensor, base, copied)
                loans.note(tensor, views[id(tensor)])
            return views[id(tensor)]

        args, kwargs = map_tensors(bring, values, loans.note_container, loans.objects.append)
        there = self.backend.torch_device(place)
        if there is not None:  # a model written for one device hands on "its" device
            args = tuple([there if _is_device(value) else value for value in args])
            kwargs = {key: there if _is_device(value) else value for key, value in kwargs.items()}
        return (args, kwargs), loans

    def may_write(self, *values: Any) -> None:
        """What runs next may write these in place: it comes after the transfers that read them.

        Args:
            *values: tensors, nested as they are.
        """
        for tensor in tensors_in(*values):
            wait_for_readers(tensor, self.backend)
            note_write(tensor)

    def may_write_anything(self, place: str) -> None:
        """What runs next may write anything that lies at a place: it comes after all transfers from there.

        Args:
            place: the device.
        """
        wait_for_sends(self.backend, place)

    def close(self) -> None:
        """The step is over: what it was given and what it used is the caller's, who may write it."""
        for place in list(self.backend.outstanding):
            wait_for_sends(self.backend, place)

    def call_of(self, layer: str) -> str:
        """The name of a layer's next call: that of its node in the graph.

        Args:
            layer: the layer.
        """
        turn = self._calls.get(layer, 0)
        self._calls[layer] = turn + 1
        return f"{layer}#{turn}" if turn else layer

    def stamp(self, result: Any, place: str | None, turn: int, *, renew: bool) -> None:
        """Say that a result was made now.

        Args:
            result: what a layer or glue returned.
            place: where it ran; None if that is nowhere yet.
            turn: when the code came to it.
            renew: see `marks.stamp`.
        """
        for tensor in (result,) if isinstance(result, torch.Tensor) else tensors_in(result):
            stamp(tensor, place, turn, renew=renew)

    def next_turn(self) -> int:
        """The code comes to a layer or to glue: a number for it, larger than all of earlier steps."""
        return int(next(self.runtime.turns))


def _writes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """What tells a tensor from what it was before it was written."""
    mark = mark_of(tensor)
    return version_of(tensor), 0 if mark is None else mark.writes


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type != "meta"
