"""What a call writes and draws while it runs with fake tensors, and what it must not do then."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from baechi.run.state.draws import Draw, draw_of
from baechi.run.state.meta import Meta
from baechi.torchlib.operators.facts import draws, facts_of, flat, writes_of
from baechi.torchlib.private.fakes import FakeTensor
from baechi.torchlib.private.modes import UntracedDispatchMode
from baechi.torchlib.private.tensors import storage_address
from baechi.torchlib.tensors.pytree import map_tensors


class FakeWatch(UntracedDispatchMode):
    """Notes what is written and drawn while a call runs.

    Args:
        references: gets a weak reference to each tensor that is made.
    """

    def __init__(self, references: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.references = references
        self.given: dict[int, int] = {}
        self.written: set[int] = set()
        self.draws: list[Draw] = []
        self.made: dict[int, torch.Tensor] = {}  # held, so that no storage's number is used twice
        self._fakes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def start(self, fakes: list[torch.Tensor]) -> None:
        """These are the given tensors; what was made so far is none of the call's."""
        self.made.clear()
        self.given = {storage_number(tensor): index for index, tensor in enumerate(fakes)}

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What stands for a real tensor that hangs somewhere: it is held, so that it has its number alone."""
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
        if not facts.rule.fresh:  # what `torch.tensor` makes of numbers is real
            if any(type(tensor) is not FakeTensor for tensor in writes_of(facts, args, kwargs)):
                raise RealTensors(f"{func} writes a tensor that hangs on something else than the layer")
            args, kwargs = map_tensors(self.fake_of, (args, kwargs))
        for tensor in writes_of(facts, args, kwargs):
            index = self.given.get(storage_number(tensor))
            if index is not None:
                self.written.add(index)
        result = func(*args, **kwargs)
        if draws(func, args, kwargs):
            self.draws.append(draw_of(func, args, kwargs, next(iter(flat((result,)))).device))
        for tensor in flat((result,)):
            self.references.append(weakref.ref(tensor))
            if not facts.aliases:
                self.made[storage_number(tensor)] = tensor
        return result


class RealTensors(Exception):
    """A call writes tensors of which nothing is known, or calls a layer that is not in it: for real."""


_thread = threading.local()


@contextmanager
def foreseeing() -> Iterator[None]:
    """While this is open, this thread only asks what a call will return."""
    _thread.foresees = True
    try:
        yield
    finally:
        _thread.foresees = False


def refuse_if_foreseeing(layer: str) -> None:
    """A layer is called: not by the code, if this thread only asks what a call will return.

    Args:
        layer: its name.

    Raises:
        RealTensors: it asks.
    """
    if getattr(_thread, "foresees", False):
        raise RealTensors(f"{layer} is called by a layer that it is no part of")


def like(meta: Meta) -> torch.Tensor:
    """A fake tensor that looks so; under a fake mode.

    Args:
        meta: how it looks.
    """
    made = torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype, device=meta.device)
    if meta.requires_grad and torch.is_grad_enabled():
        anchor = torch.empty((), device=meta.device, requires_grad=True)
        computed: torch.Tensor = _Made.apply(anchor, made)  # type: ignore[no-untyped-call]
        return computed
    return made.requires_grad_(meta.requires_grad)


class _Made(torch.autograd.Function):
    """Something that somebody computed: it requires a gradient, is no leaf and no view."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def storage_number(tensor: torch.Tensor) -> int:
    """What tells the storages of tensors that are alive apart.

    Args:
        tensor: any tensor.
    """
    return storage_address(tensor.untyped_storage())
