"""Record what a call writes and draws while it runs with fake tensors; refuse writes to real tensors."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from baechi.run.state.draws import Draw, draw_of
from baechi.run.state.meta import Meta
from baechi.torchlib.fakes.results import without_undefined
from baechi.torchlib.operators.facts import draws, facts_of, flat, writes_of
from baechi.torchlib.private.fakes import FakeTensor
from baechi.torchlib.private.modes import UntracedDispatchMode
from baechi.torchlib.private.tensors import storage_address
from baechi.torchlib.tensors.pytree import map_tensors


class FakeWatch(UntracedDispatchMode):
    """Records writes and random draws while a call runs.

    Args:
        references: is filled with a weak reference to each tensor that is made.
    """

    def __init__(self, references: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.references = references
        self.given: dict[int, int] = {}  # index of an argument by its storage number
        self.written: set[int] = set()  # indexes of arguments
        self.draws: list[Draw] = []
        self.made: dict[int, torch.Tensor] = {}  # held, so that storage numbers stay unique
        self._fakes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def start(self, fakes: list[torch.Tensor]) -> None:
        """Begin the call: note its fake arguments, and forget tensors made before it."""
        self.made.clear()
        self.given = {storage_number(tensor): index for index, tensor in enumerate(fakes)}

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake of a real tensor that a module or closure holds. Both are held, to keep ids unique."""
        if tensor.layout != torch.strided or tensor.is_nested or isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._fakes:
            made = like(Meta.of(tensor))
            made = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
            self._fakes[id(tensor)] = tensor, made
        return self._fakes[id(tensor)][1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        facts = facts_of(func)
        if not facts.rule.fresh:  # these (`lift_fresh`) get the real tensor that `torch.tensor` just made
            if any(type(tensor) is not FakeTensor for tensor in writes_of(facts, args, kwargs)):
                raise RealTensors(f"{func} writes a real tensor that is neither an argument nor the layer's")
            args, kwargs = map_tensors(self.fake_of, (args, kwargs))
        for tensor in writes_of(facts, args, kwargs):
            index = self.given.get(storage_number(tensor))
            if index is not None:
                self.written.add(index)
        result = without_undefined(func, args, func(*args, **kwargs))
        if draws(func, args, kwargs):
            self.draws.append(draw_of(func, args, kwargs, next(iter(flat((result,)))).device))
        for tensor in flat((result,)):
            self.references.append(weakref.ref(tensor))
            if not facts.aliases:
                self.made[storage_number(tensor)] = tensor
        return result


class RealTensors(Exception):
    """A call that is only inferred would write a real tensor, or launch a layer that is not part of it."""


class _Thread(threading.local):
    infers = False


_thread = _Thread()


@contextmanager
def foreseeing() -> Iterator[None]:
    """Within this context, the thread only infers outcomes: no layer may launch."""
    _thread.infers = True
    try:
        yield
    finally:
        _thread.infers = False


def refuse_if_foreseeing(layer: str) -> None:
    """Refuse to launch a layer while this thread only infers what a call will return.

    Args:
        layer: its name.

    Raises:
        RealTensors: the thread is inside `foreseeing`.
    """
    if _thread.infers:
        raise RealTensors(f"{layer} is called by another layer, of which it is no submodule")


def like(meta: Meta) -> torch.Tensor:
    """Make a fake tensor; a fake mode must be on.

    Args:
        meta: its shape, strides, dtype and device.
    """
    made = torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype, device=meta.device)
    if meta.requires_grad and torch.is_grad_enabled():
        # an output of a custom Function: it requires a gradient, and is neither a leaf nor a view
        anchor = torch.empty((), device=meta.device, requires_grad=True)
        computed: torch.Tensor = _Made.apply(anchor, made)  # type: ignore[no-untyped-call]
        return computed
    return made.requires_grad_(meta.requires_grad)


class _Made(torch.autograd.Function):
    """Makes a tensor that looks like the result of an operation to autograd."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def storage_number(tensor: torch.Tensor) -> int:
    """A number that identifies a tensor's storage while it is alive.

    Args:
        tensor: any tensor.
    """
    return storage_address(tensor.untyped_storage())
