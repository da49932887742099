"""The devices of all ranks as one of them sees them: its own is here; what lies on others has no values."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from baechi.backend.ranks.names import rank_of
from baechi.backend.ranks.rendezvous import own_device
from baechi.backend.ranks.wires import Wires
from baechi.backend.real.devices import TorchDevices
from baechi.errors import PlanError
from baechi.torchlib.elsewhere import ElsewhereTensor
from baechi.torchlib.random_state import set_state, state_of


class RankDevices(TorchDevices):
    """The devices of ranks.

    Args:
        names: of all devices.
        wires: the ways to the other ranks.

    Attributes:
        wires: as given.
        own: the name of this process's device.
        ranks: by device, its rank.
    """

    def __init__(self, names: Sequence[str], wires: Wires) -> None:
        ranks = [rank_of(name) for name in names]
        if sorted(rank or 0 for rank in ranks) != list(range(wires.size)):
            raise PlanError(
                f"the plan is for the devices {', '.join(names)}, and there are {wires.size} ranks: a rank "
                "has one device. Start as many processes as the plan has devices"
            )
        self.own = names[ranks.index(wires.rank)]
        self._here = str(own_device()) if wires.replicas > 1 else self.own.partition("/")[2]
        super().__init__((self._here,))
        self.names, self.wires = tuple(names), wires
        self.ranks = {name: rank for name, rank in zip(names, ranks, strict=True) if rank is not None}

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
        return super().at(self._there(place), layer)

    def is_bare(self, *places: str) -> bool:
        return super().is_bare(*map(self._there, places))

    def draw_state(self) -> torch.Tensor:
        """The state of the generator that this process's device draws from."""
        return state_of(torch.device(self._here))

    def set_draw_state(self, state: torch.Tensor) -> None:
        """Set it."""
        set_state(torch.device(self._here), state)

    def seeded_draw_state(self, seeded: Any) -> torch.Tensor:
        """Of states that `seeded` made, the one of that generator."""
        host, states, _ = seeded
        device = torch.device(self._here)
        found: torch.Tensor = host if device.type == self.host else states[device]
        return found
