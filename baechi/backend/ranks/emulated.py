"""Emulated devices of ranks: each process emulates its own, and messages say when they arrive.

    rank 0   [ F0 ]                                one clock a rank; a sender knows when its copy arrives,
    0 > 1         [copy....]  <- bytes, and 8 more  since a link is used by nobody else
    rank 1                  [ F0 ]

So each rank comes by the times of one process that emulates all devices, with a host for each.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from baechi.backend.ranks.devices import RankDevices
from baechi.backend.ranks.wires import Wires
from baechi.backend.sends import note_sent
from baechi.backend.transfer import receive
from baechi.backend.virtual import current
from baechi.backend.virtual.devices import VirtualDevices
from baechi.torchlib.elsewhere import ElsewhereTensor
from baechi.torchlib.private.modes import without_dispatch_modes


class VirtualRanks(RankDevices, VirtualDevices):
    """The devices of ranks, emulated; see `VirtualDevices`.

    Args:
        names: of all devices.
        wires: the ways to the other ranks.
    """

    def __init__(self, names: Sequence[str], wires: Wires) -> None:
        self._join(names, wires)
        VirtualDevices.__init__(self, names)

    def place_of(self, tensor: torch.Tensor) -> str:
        return tensor.place if isinstance(tensor, ElsewhereTensor) else VirtualDevices.place_of(self, tensor)

    def finder(self, place: str) -> Callable[[torch.Tensor], bool]:
        return lambda tensor: self.place_of(tensor) == place

    @property
    def clock_s(self) -> float | None:
        emulator = current.at_work()
        return None if emulator is None else emulator.begin_s

    @property
    def message_device(self) -> torch.device:
        return torch.device("cpu")

    def meet(self, now_s: float) -> None:
        emulator = current.at_work()
        if emulator is not None:
            emulator.begin_at(now_s)

    def packing(self) -> AbstractContextManager[object]:
        return without_dispatch_modes()

    def departs(self, tensor: torch.Tensor, target: str) -> float | None:
        emulator = current.at_work()
        if emulator is None:
            return None
        emulator.raise_fault()
        self.spend("transfer", self.own)
        tx, rx = emulator.transfer_streams(emulator.index[self.own], emulator.index[target])
        self.wait(tx, self.record(self.compute_stream(self.own)))
        there_s = self.sent_over(emulator, tensor, target, (tx, rx))
        self.use(tensor, tx)
        note_sent(tensor, self, self.own, tx, self.record(tx))
        return there_s

    def expects(self, tensor: torch.Tensor, source: str) -> None:
        emulator = current.at_work()
        if emulator is not None:
            emulator.raise_fault()
            emulator.expect(tensor, emulator.index[source], emulator.index[self.own])

    def arrives(self, tensor: torch.Tensor, source: str, there_s: float) -> None:
        emulator = current.at_work()
        if emulator is not None:
            arrived = emulator.arrival((emulator.index[source], emulator.index[self.own]), there_s)
            receive(tensor, self, self.own, arrived)
