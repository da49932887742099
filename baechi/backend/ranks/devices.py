"""The devices of all ranks as one of them sees them: its own is here; what lies on others has no values."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from baechi.backend.abstract import AbstractBackend
from baechi.backend.ranks.rendezvous import own_device
from baechi.backend.ranks.wires import Wires
from baechi.backend.real.devices import TorchDevices
from baechi.errors import PlanError
from baechi.records.rank_names import rank_of
from baechi.torchlib.elsewhere import ElsewhereTensor
from baechi.torchlib.random_state import set_state, state_of

_NOTHING = nullcontext()


class RankDevices(AbstractBackend):
    """The devices of ranks, of which one is here.

    Args:
        names: of all devices.
        wires: the ways to the other ranks.

    Attributes:
        wires: as given.
        own: the name of this process's device.
        ranks: by device, its rank.
        of_rank: by rank, its device.
    """

    wires: Wires
    own: str
    ranks: dict[str, int]
    of_rank: dict[int, str]

    def _join(self, names: Sequence[str], wires: Wires) -> str:
        """Take a seat among the ranks; returns the own device as torch names it."""
        ranks = [rank_of(name) for name in names]
        if sorted(rank or 0 for rank in ranks) != list(range(wires.size)):
            raise PlanError(
                f"the plan is for the devices {', '.join(names)}, and there are {wires.size} ranks: a rank "
                "has one device. Start as many processes as the plan has devices"
            )
        self.own, self.wires = names[ranks.index(wires.rank)], wires
        self.ranks = {name: rank for name, rank in zip(names, ranks, strict=True) if rank is not None}
        self.of_rank = {rank: name for name, rank in self.ranks.items()}
        return self.own.partition("/")[2]

    @property
    def clock_s(self) -> float | None:
        """The emulated time of this rank's host; None where nothing is emulated."""
        return None

    @property
    def message_device(self) -> torch.device:
        """Where what travels is laid in a row, as torch knows it."""
        return self.named_device(self.own)

    def meet(self, now_s: float) -> None:
        """A step begins, at this emulated time on all ranks."""

    def packing(self) -> AbstractContextManager[object]:
        """While what travels is laid in a row, and taken out of it: that is no operation of the model."""
        return self.at(self.own, "")

    def departs(self, tensor: torch.Tensor, target: str) -> float | None:
        """A tensor is sent: when it arrives, in emulated time; None where nothing is emulated."""
        return None

    def expects(self, tensor: torch.Tensor, source: str) -> None:
        """Memory was taken for a tensor that another rank sends."""

    def arrives(self, tensor: torch.Tensor, source: str, there_s: float) -> None:
        """It was received: what is issued here from now on comes after that time."""

    @property
    def replicas(self) -> int:
        return self.wires.replicas

    @property
    def homes(self) -> Sequence[str]:
        return (self.own,)

    def begin_sum(self, flat: torch.Tensor, place: str) -> Any:
        return self.wires.begin_sum(flat)

    def end_sum(self, begun: Any, place: str) -> None:
        self.wires.wait_for_sum(begun)

    def draw_state(self) -> torch.Tensor:
        """The state of the generator that this process's device draws from."""
        return state_of(self._drawing)

    def set_draw_state(self, state: torch.Tensor) -> None:
        """Set it."""
        set_state(self._drawing, state)

    @property
    def _drawing(self) -> torch.device:
        """Whose generator that is."""
        return torch.device("cpu")

    def seeded_draw_state(self, seeded: Any) -> torch.Tensor:
        """Of states that `seeded` made, the one of that generator."""
        found: torch.Tensor = seeded
        return found


class TorchRanks(RankDevices, TorchDevices):
    """The devices of ranks; that of this process is torch's.

    Args:
        names: of all devices.
        wires: the ways to the other ranks.
    """

    def __init__(self, names: Sequence[str], wires: Wires) -> None:
        own = self._join(names, wires)
        self._here = str(own_device()) if wires.replicas > 1 else own
        TorchDevices.__init__(self, (self._here,))
        self.names = tuple(names)
        self._on_host = torch.device(self._here).type == self.host

    def _there(self, place: str) -> str:
        """A place as `TorchDevices` knows it; others' are taken for the own one, where only kinds count."""
        return self._here if place in self.ranks else place

    def place_of(self, tensor: torch.Tensor) -> str:
        if isinstance(tensor, ElsewhereTensor):
            return tensor.place
        found = super().place_of(tensor)
        return self.own if found == self._here else found

    def finder(self, place: str) -> Callable[[torch.Tensor], bool]:
        return lambda tensor: self.place_of(tensor) == place

    def torch_device(self, place: str) -> torch.device | None:
        return super().torch_device(self._there(place))

    def named_device(self, place: str) -> torch.device:
        return super().named_device(self._there(place))

    def kernel_device(self, place: str) -> torch.device | None:
        return super().kernel_device(self._there(place))

    def generators(self) -> list[torch.device]:
        device = torch.device(self._here)
        return [] if device.type == self.host else [device]

    def is_unplaced(self, tensor: torch.Tensor) -> bool:
        return False

    def claim(self, tensor: torch.Tensor, place: str) -> bool:
        return False

    def move_weights(self, tensors: Sequence[torch.Tensor], place: str) -> list[torch.Tensor]:
        return super().move_weights(tensors, self._there(place))

    def room_for(self, tensors: Sequence[torch.Tensor], place: str) -> list[torch.Tensor]:
        return super().room_for(tensors, self._there(place))

    def compute_stream(self, place: str) -> Any:
        return super().compute_stream(self._there(place))

    def transfer_streams(self, source: str, target: str) -> tuple[Any, Any]:
        return super().transfer_streams(self._there(source), self._there(target))

    def copy(
        self, tensor: torch.Tensor, place: str, streams: tuple[Any, Any], *, gradient: bool = False
    ) -> torch.Tensor:
        assert place in (self.own, self.host), f"{place} is on another rank"
        return super().copy(tensor, self._there(place), streams, gradient=gradient)

    def at(
        self, place: str, layer: str | None = None
    ) -> AbstractContextManager[Callable[[Any], None] | None]:
        if self._on_host and self._clock is None:  # all that is here lies there
            return _NOTHING
        return super().at(self._there(place), layer)

    def is_bare(self, *places: str) -> bool:
        return super().is_bare(*map(self._there, places))

    @property
    def _drawing(self) -> torch.device:
        return torch.device(self._here)

    def seeded_draw_state(self, seeded: Any) -> torch.Tensor:
        """See `RankDevices`."""
        host, states, _ = seeded
        found: torch.Tensor = host if self._drawing.type == self.host else states[self._drawing]
        return found
