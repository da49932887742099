"""Devices that torch itself knows, such as CUDA's: a place is what `str(tensor.device)` says."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from baechi.backend.abstract import AbstractBackend
from baechi.backend.layout import copy_with_layout
from baechi.backend.marks import WEIGHT, Mark, set_mark


class TorchDevices(AbstractBackend):
    """The devices of a cluster whose names torch understands.

    Copies run on the current streams of both ends, which torch synchronizes; layers launch on the
    current stream of their device, in code order.

    Args:
        names: device names, such as `"cuda:0"`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def place_of(self, tensor: torch.Tensor) -> str:
        return str(tensor.device)

    def copy(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        return copy_with_layout(tensor, torch.device(place))

    def is_free(self, tensor: torch.Tensor) -> bool:
        return False

    def adopt(self, tensor: torch.Tensor, place: str) -> bool:
        return False

    def move_weights(self, tensors: Sequence[torch.Tensor], place: str) -> list[torch.Tensor]:
        moved: dict[torch.UntypedStorage, torch.UntypedStorage] = {}
        result = []
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage not in moved:
                here = str(tensor.device) == place
                moved[storage] = storage if here else storage.to(device=torch.device(place))
            data = torch.empty(0, dtype=tensor.dtype, device=place)
            data.set_(moved[storage], tensor.storage_offset(), tensor.shape, tensor.stride())
            set_mark(data, Mark(place, WEIGHT))
            result.append(data)
        return result

    def checking(self) -> AbstractContextManager[None]:
        return nullcontext()
