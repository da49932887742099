"""Emulated devices of ranks: each process emulates its own, and messages say when they arrive.

    rank 0   [ F0 ]                                one clock a rank; a sender knows when its copy arrives,
    0 > 1         [copy....]  <- bytes, and 8 more  since a link is used by nobody else
    rank 1                  [ F0 ]

So each rank comes by the times of one process that emulates all devices, with a host for each.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from baechi.backend.ranks.devices import RankDevices
from baechi.backend.ranks.wires import Wires
from baechi.backend.sends import note_sent
from baechi.backend.transfer import receive
from baechi.backend.virtual import current
from baechi.backend.virtual.devices import VirtualDevices
from baechi.backend.virtual.machine.emulator import Emulator
from baechi.backend.virtual.machine.sums import Sum
from baechi.errors import PlanError
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

    def begin_sum(self, flat: torch.Tensor, place: str) -> Any:
        with self.packing():
            begun = super().begin_sum(flat, place)
        emulator = current.at_work()
        if emulator is None:
            return begun, None
        return begun, self._with_latest(self.sum_issued(emulator, flat, place, self._ring(emulator, place)))

    def end_sum(self, begun: Any, place: str) -> None:
        summed, latest = begun
        with self.packing():
            super().end_sum(summed, place)
        if latest is not None:
            asked, ready_s, sent = latest
            self.wires.wait_for_sum(asked)
            self.sum_over(replace(sent, ready_s=ready_s.item()), place)

    def _with_latest(self, sent: Sum) -> tuple[int, torch.Tensor, Sum]:
        """A sum begins when the last replica has what is added up: ask for that time."""
        with self.packing():
            ready_s = torch.tensor([sent.ready_s], dtype=torch.float64)
            return self.wires.begin_sum(ready_s, latest=True), ready_s, sent

    def _ring(self, emulator: Emulator, place: str) -> Sequence[int]:
        """The devices of a sum, by their places in the cluster that is emulated."""
        size, there = self.wires.size, len(emulator.cluster)
        if there != size * self.replicas:
            raise PlanError(
                f"{self.replicas} replicas of {size} ranks have {size * self.replicas} devices, and the "
                f"emulated cluster has {there}: use Cluster.virtual({size * self.replicas}, ranks=True)"
            )
        return range(self.ranks[place], there, size)

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
