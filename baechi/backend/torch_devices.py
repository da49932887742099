"""Devices that torch itself knows, such as CUDA's: a place is what `str(tensor.device)` says."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch

from baechi.backend.abstract import AbstractBackend
from baechi.backend.flag import Flag
from baechi.backend.layout import copy_with_layout
from baechi.backend.marks import WEIGHT, Mark, set_mark
from baechi.backend.room import room
from baechi.backend.thread import started
from baechi.records.timeline import Timeline


class TorchDevices(AbstractBackend):
    """The devices of a cluster whose names torch understands.

    Transfers between CUDA devices run on streams of their own, a pair for each ordered pair of
    devices; other devices, the host among them, have no streams, and their copies block.

    Args:
        names: device names, such as `"cuda:0"`.
    """

    host = "cpu"

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        self._transfer: dict[tuple[str, str], tuple[Any, Any]] = {}

    def place_of(self, tensor: torch.Tensor) -> str:
        return str(tensor.device)

    def torch_device(self, place: str) -> torch.device | None:
        return torch.device(place)

    def is_free(self, tensor: torch.Tensor) -> bool:
        return False

    def adopt(self, tensor: torch.Tensor, place: str) -> bool:
        return False

    def move_weights(self, tensors: Sequence[torch.Tensor], place: str) -> list[torch.Tensor]:
        moved: dict[torch.UntypedStorage, torch.UntypedStorage] = {}
        result = []
        for tensor in tensors:
            if tensor.layout != torch.strided:  # which has several storages; nobody shares them
                result.append(tensor.data.to(torch.device(place)))
                continue
            storage = tensor.untyped_storage()
            if storage not in moved:
                here = str(tensor.device) == place
                moved[storage] = storage if here else storage.to(device=torch.device(place))
            data = torch.empty(0, dtype=tensor.dtype, device=place)
            data.set_(moved[storage], tensor.storage_offset(), tensor.shape, tensor.stride())
            set_mark(data, Mark(place, WEIGHT))
            result.append(data)
        return result

    def room_for(self, tensors: Sequence[torch.Tensor], place: str) -> list[torch.Tensor]:
        made = room(tensors, torch.device(place))
        for tensor in made:
            set_mark(tensor, Mark(place, WEIGHT))
        return made

    @property
    def session(self) -> object:
        return None

    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        del tensors  # the driver knows

    def compute_stream(self, place: str) -> Any:
        return torch.cuda.current_stream(torch.device(place)) if _has_streams(place) else None

    def transfer_streams(self, source: str, target: str) -> tuple[Any, Any]:
        if (source, target) not in self._transfer:
            streams = [
                torch.cuda.Stream(device=torch.device(end)) if _has_streams(end) else None
                for end in (source, target)
            ]
            self._transfer[source, target] = streams[0], streams[1]
        return self._transfer[source, target]

    def record(self, stream: Any) -> Any:
        return None if stream is None else stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        if stream is not None and event is not None:
            stream.wait_event(event)

    def use(self, tensor: torch.Tensor, stream: Any) -> None:
        if stream is not None and tensor.device.type == "cuda":
            tensor.record_stream(stream)

    def copy(self, tensor: torch.Tensor, place: str, streams: tuple[Any, Any]) -> torch.Tensor:
        with ExitStack() as stack:  # a peer copy is ordered with the current streams of both ends
            for stream in streams:
                if stream is not None:
                    stack.enter_context(torch.cuda.stream(stream))
            copied = copy_with_layout(tensor, torch.device(place))
        if not _has_streams(place) and streams[0] is not None:
            streams[0].synchronize()
        return copied

    def idle_s(self) -> float:
        for name in self.names:
            if _has_streams(name):
                torch.cuda.synchronize(torch.device(name))
        return time.perf_counter()

    def flag(self) -> Flag:
        return threading.Event()

    def spawn(self, function: Callable[[], None], position: int) -> Callable[[], None]:
        del position
        return started(function)

    def step(self) -> AbstractContextManager[Callable[[], Timeline] | None]:
        return nullcontext()

    def enter_layer(self, layer: str) -> str:
        return ""


def _has_streams(place: str) -> bool:
    return torch.device(place).type == "cuda"
