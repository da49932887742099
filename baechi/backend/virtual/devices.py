"""Emulated devices: ordinary CPU tensors that carry a mark of where they lie."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

from baechi.backend.abstract import AbstractBackend
from baechi.backend.layout import copy_with_layout
from baechi.backend.marks import UNSET, WEIGHT, Mark, mark_of, remove_mark, set_mark
from baechi.records.cluster import HOST

_steps = threading.local()


class VirtualDevices(AbstractBackend):
    """The devices of an emulated cluster; whatever has no mark lies on the host.

    Args:
        names: device names, such as `"cpu:0"`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def place_of(self, tensor: torch.Tensor) -> str:
        mark = mark_of(tensor)
        return HOST if mark is None or mark.place is None else mark.place

    def copy(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        with _disable_current_modes():  # a transfer is nobody's operation
            copied = copy_with_layout(tensor, tensor.device)
        made = mark_of(tensor)
        set_mark(copied, Mark(place, made.made if made else UNSET))
        return copied

    def is_free(self, tensor: torch.Tensor) -> bool:
        mark = mark_of(tensor)
        return mark is not None and mark.place is None

    def adopt(self, tensor: torch.Tensor, place: str) -> bool:
        mark = mark_of(tensor)
        if mark is None or mark.place is not None:
            return False
        mark.place = place
        return True

    def move_weights(self, tensors: Sequence[torch.Tensor], place: str) -> list[torch.Tensor]:
        for tensor in tensors:
            if place == HOST:
                remove_mark(tensor)
            else:
                set_mark(tensor, Mark(place, WEIGHT))
        return [tensor.data for tensor in tensors]

    def checking(self) -> AbstractContextManager[None]:
        return _checking()


@contextmanager
def _checking() -> Iterator[None]:
    _steps.depth = getattr(_steps, "depth", 0) + 1
    try:
        yield
    finally:
        _steps.depth -= 1


def in_step() -> bool:
    """Whether this thread is inside a step, or in the backward of one."""
    return getattr(_steps, "depth", 0) > 0 or torch._C._current_graph_task_id() != -1
