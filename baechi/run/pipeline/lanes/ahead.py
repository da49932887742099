"""What is sent as soon as it is made, since a microbatch before read it on another device.

    microbatch 0    u = a(x) + x ─▶ ...        b(u): u is fetched, and its site is noted
    microbatch 1    u = a(x) + x ─▶ sent at once ...  b(u): u is there

The plan knows this of a layer that returns one tensor. It does not know which object of the code another
device reads: the result of a functional op, a view of it, or one of several outputs. So that is observed.
What is fetched late queues behind what was issued meanwhile, of later microbatches. A site whose tensor was
sent in vain (the code took another path) is forgotten.
"""

import weakref
from typing import Any, NamedTuple

import torch

from baechi.run.step.aliases import base_of, is_plain
from baechi.torchlib.tensors.pytree import tensors_in
from baechi.torchlib.tensors.weak_table import WeakTable

HIDDEN = -1
"""The turn of what the code made before a layer, unseen."""


class MakingSite(NamedTuple):
    """Where the model's code makes a tensor.

    Args:
        after: the layer call before it, or that made it.
        turn: how many functional ops the code called since; 0 for what the layer returned, `HIDDEN` for what
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

    Attributes:
        sites: by tensor that a layer or a functional op made, where. Others are hidden: a fused stack's own
            code made them.
    """

    def __init__(self, ahead: Ahead) -> None:
        self.sites: WeakTable[MakingSite] = WeakTable()
        self._readers = ahead.readers
        self._first: WeakTable[weakref.ref[torch.Tensor]] = WeakTable()
        self._sent: dict[tuple[MakingSite, str], None] = {}

    def made(self, after: str, turn: int, result: Any) -> list[tuple[torch.Tensor, tuple[str, ...]]]:
        """The tensors that the code made, each with the devices to which it is sent now."""
        found = []
        tensors = (result,) if isinstance(result, torch.Tensor) else tensors_in(result)
        for index, tensor in enumerate(tensors):
            site = MakingSite(after, turn, index)
            self.sites.put(tensor, site)
            base = base_of(tensor)
            # of what is no view, the code got itself first if nothing else is known: see `first_of`
            if base is not tensor or self._first.get(tensor) is not None:
                if tensor.numel() == base.numel() and _shows_all(tensor) and self.first_of(tensor) is tensor:
                    self._first.put(base, weakref.ref(tensor))
            readers = tuple(self._readers.get(site, ()))
            for place in readers:
                self._sent[site, place] = None
            found.append((tensor, readers))
        return found

    def read(self, tensor: torch.Tensor, place: str) -> None:
        """Note that another device reads a tensor."""
        site = self.sites.get(tensor)
        if site is not None:
            self._readers.setdefault(site, {})[place] = None
            self._sent.pop((site, place), None)

    def first_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the code got first of a tensor's memory, if both show all of it; else the tensor.

        Several views of one memory travel as one tensor, as the first did.
        """
        base = base_of(tensor)
        known = self._first.get(base)
        if known is not None:
            first = known()
        else:
            first = (
                base if base is not tensor and self.sites.get(base) is not None and _shows_all(base) else None
            )
        if first is None or first is tensor:
            return tensor
        return first if _elements(tensor) == base.numel() and is_plain(tensor, first) else tensor

    def leave(self) -> None:
        """The code is over: what was sent and not read is not sent ahead next time."""
        for site, place in self._sent:
            self._readers.get(site, {}).pop(place, None)
        self._sent = {}
        self.sites, self._first = WeakTable(), WeakTable()


def _shows_all(tensor: torch.Tensor) -> bool:
    """Whether a tensor shows each element of its memory once."""
    dense = tensor.layout is torch.strided and not tensor.is_nested and tensor.is_contiguous()
    return dense or _elements(tensor) == tensor.numel()


def _elements(tensor: torch.Tensor) -> int:
    """How many elements of its memory a tensor shows: an expanded one has more of its own."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        return tensor.numel()
    shown = 1
    for size, stride in zip(tensor.size(), tensor.stride(), strict=True):
        shown *= size if stride else 1
    return shown
