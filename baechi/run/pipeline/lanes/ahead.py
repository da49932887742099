"""What is sent as soon as it is made, since a microbatch before read it on another device.

    microbatch 0    u = a(x) + x ─▶ ...        b(u): u is fetched, and its site is noted
    microbatch 1    u = a(x) + x ─▶ sent at once ...  b(u): u is there

The plan knows this of a layer that returns one tensor. It does not know which object of the code another
device reads: the result of a functional op, a view of it, or one of several outputs. So that is observed.
What is fetched late queues behind what was issued meanwhile, of later microbatches. A site whose tensor was
sent in vain (the code took another path) is forgotten.
"""

import math
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from baechi.run.step.aliases import base_of, is_plain
from baechi.torchlib.tensors.pytree import tensors_in
from baechi.torchlib.tensors.weak_table import WeakTable

_HIDDEN = -1


class MakingSite(NamedTuple):
    """Where the model's code makes a tensor.

    Args:
        after: the layer call before it, or that made it.
        turn: how many functional ops the code called since; 0 for what the layer returned, `_HIDDEN` for what
            was made before it unseen.
        output: its place among the tensors that were returned.
    """

    after: str
    turn: int
    output: int


class Ahead:
    """What other devices read. One for all microbatches and steps.

    Attributes:
        readers: by site, the devices that read what is made there.
        weights: the names of weights that were read in the last step, each with a device.
    """

    def __init__(self) -> None:
        self.readers: dict[MakingSite, dict[str, None]] = {}
        self.weights: dict[tuple[str, str], None] = {}


class Sender:
    """One microbatch's part in it.

    Args:
        ahead: what is known; it is added to.
    """

    def __init__(self, ahead: Ahead) -> None:
        self._readers = ahead.readers
        self._made: WeakTable[MakingSite] = WeakTable()
        self._first: WeakTable[weakref.ref[torch.Tensor]] = WeakTable()
        self._sent: dict[tuple[MakingSite, str], None] = {}
        self._after, self._turn = "", 0

    def reached(self, call: str) -> None:
        """Note that the code reaches a layer.

        Args:
            call: its name, with the number of its call.
        """
        self._after, self._turn = call, 0

    def of_function(self, result: Any) -> Iterator[tuple[torch.Tensor, tuple[str, ...]]]:
        """The tensors that a functional op made, each with the devices to which it is sent now.

        Args:
            result: what it returned.
        """
        self._turn += 1
        return self._of(self._after, self._turn, result)

    def of_layer(self, call: str, result: Any) -> Iterator[tuple[torch.Tensor, tuple[str, ...]]]:
        """The same of a layer.

        Args:
            call: its name, with the number of its call.
            result: what it returned.
        """
        return self._of(call, 0, result)

    def hidden(self, given: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Those of some tensors that no layer and no functional op made: a fused stack's own code did.

        Args:
            given: arguments of a layer.
        """
        return [tensor for tensor in given if self._made.get(tensor) is None]

    def of_hidden(
        self, call: str, made: Iterable[torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, tuple[str, ...]]]:
        """As of a layer, of what is hidden among its arguments.

        Args:
            call: the layer's name, with the number of its call.
            made: what is hidden, as far as it lies on devices.
        """
        return self._of(call, _HIDDEN, made)

    def read(self, tensor: torch.Tensor, place: str) -> None:
        """Note that another device reads a tensor.

        Args:
            tensor: the tensor.
            place: the device.
        """
        site = self._made.get(tensor)
        if site is not None:
            self._readers.setdefault(site, {})[place] = None
            self._sent.pop((site, place), None)

    def first_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the code got first of a tensor's memory, if both show all of it; else the tensor.

        Several views of one memory travel as one tensor, as the first did.

        Args:
            tensor: any tensor.
        """
        base = base_of(tensor)
        known = self._first.get(base)
        first = None if known is None else known()
        if first is None or _elements(tensor) != base.numel() or not is_plain(tensor, first):
            return tensor
        return first

    def leave(self) -> None:
        """The code is over: what was sent and not read is not sent ahead next time."""
        for site, place in self._sent:
            self._readers.get(site, {}).pop(place, None)
        self._sent = {}
        self._made, self._first = WeakTable(), WeakTable()

    def _of(self, after: str, turn: int, result: Any) -> Iterator[tuple[torch.Tensor, tuple[str, ...]]]:
        for index, tensor in enumerate(tensors_in(result)):
            site = MakingSite(after, turn, index)
            self._made.put(tensor, site)
            base = base_of(tensor)
            if tensor.numel() == _elements(tensor) == base.numel() and self.first_of(tensor) is tensor:
                self._first.put(base, weakref.ref(tensor))
            readers = tuple(self._readers.get(site, ()))
            if readers:
                self._sent.update(dict.fromkeys([(site, place) for place in readers]))
            yield tensor, readers


def _elements(tensor: torch.Tensor) -> int:
    """How many elements of its memory a tensor shows: an expanded one has more of its own."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        return tensor.numel()
    return math.prod([size for size, stride in zip(tensor.size(), tensor.stride(), strict=True) if stride])
