"""Writes through `.data`, which torch does not count: a look finds them by what is there afterwards."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function

At = Callable[[torch.Tensor], AbstractContextManager[object]]


@contextmanager
def unseen(at: At, tensor: torch.Tensor) -> Iterator[None]:
    """Within this context a tensor is copied or written where it lies, and nothing sees it."""
    with without_torch_function(), at(tensor), without_dispatch_modes(), torch.no_grad():
        yield


class HiddenWrites(TorchFunctionMode):
    """Within this context, the `.data` of a model's weights and buffers is watched.

    Args:
        model: the model.
        at: a context in which a tensor's device computes.
    """

    def __init__(self, model: nn.Module, at: At) -> None:
        super().__init__()
        named = [*model.named_parameters(), *model.named_buffers()]
        self._names, self._at = {id(tensor): name for name, tensor in named}, at
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        """By `id`: a tensor, its memory as it was found, and a copy of that."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See whose `.data` is read or replaced; what was there before is kept."""
        if getattr(func, "__self__", None) is torch.Tensor.data and id(args[0]) in self._names:
            tensor = args[0]
            if id(tensor) not in self._before:
                with unseen(self._at, tensor):
                    memory = tensor.detach()
                    self._before[id(tensor)] = tensor, memory, memory.clone()
        return func(*args, **(kwargs or {}))

    def put_back(self) -> list[str]:
        """Let all be as before."""
        written = []
        for key, (tensor, memory, before) in self._before.items():
            with unseen(self._at, tensor):
                if tensor.shape != before.shape or not torch.equal(tensor, before):
                    memory.copy_(before)
                    tensor.data = memory
                    written.append(self._names[key])
        return written
