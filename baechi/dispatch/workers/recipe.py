"""How a worker process gets its model: from a factory, or as the caller's modules around shared weights.

caller                                         worker
weights ──copied──▶ one shared memory ◀────────views of it
modules ──pickled, weights by place──────────▶ modules around these
"""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baechi.dispatch.replicas.shell import fingerprint_of, same_fingerprint
from baechi.dispatch.replicas.weights import Stamp, stamp_of, weights_in
from baechi.errors import FatalError
from baechi.torchlib.tensors.storage import storage_object

_ALIGNMENT_BYTES = 64

_Where = tuple[int, int, torch.dtype, int, tuple[int, ...], tuple[int, ...], bool, bool]
"""Of a weight: where its memory begins and how long it is, dtype, offset, shape, strides; whether it is a
Parameter, whether it learns."""


@dataclass(frozen=True)
class Recipe:
    """What a worker makes its model from.

    Args:
        memory: all weights, in shared memory; None for a factory.
        modules: the modules, pickled; or the factory.
        seed: the random seed with which a factory runs, the same in each worker.
    """

    memory: torch.Tensor | None
    modules: bytes
    seed: int = 0

    def model(self) -> nn.Module:
        """The model, in this process."""
        if self.memory is not None:
            return modules_from(self.modules, self.memory)
        torch.manual_seed(self.seed)
        factory: Callable[[], Any] = pickle.loads(self.modules)
        return made_by(factory)


def made_by(factory: Callable[[], Any]) -> nn.Module:
    """What a factory makes."""
    made = factory()
    if not isinstance(made, nn.Module):
        raise TypeError(f"the factory made a {type(made).__name__}: it has to make a torch.nn.Module")
    return made


def factory_recipe(factory: Callable[[], nn.Module], seed: int) -> Recipe:
    """The recipe of a factory."""
    try:
        return Recipe(None, pickle.dumps(factory), seed)
    except Exception as error:  # whatever holds it may refuse
        raise _unsendable("factory", error) from error


class SharedModel:
    """A model's weights in shared memory, which follow the model's, and its modules as bytes.

    Args:
        model: the caller's model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        masters = weights_in(model)
        self._masters = masters  # held, so that no id is used again
        self._places: dict[int, _Where] = {}
        begin = 0
        begins: dict[int, tuple[int, int]] = {}
        for master in masters:
            if master.layout != torch.strided or master.is_nested:
                raise FatalError(
                    f"a weight of shape {tuple(master.shape)} is no dense tensor, and cannot be shared"
                )
            key = id(storage_object(master))
            if key not in begins:
                size = master.untyped_storage().nbytes()
                begins[key] = begin, size
                begin += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            self._places[id(master)] = _where(master, *begins[key])
        self.memory = torch.zeros(max(begin, 1), dtype=torch.uint8).share_memory_()
        self._stamps: list[Stamp] = [None for _ in masters]
        self._fingerprint: list[Any] = []
        self.modules = b""
        self.version = 0
        """Counts changes of weights."""

    def refresh(self, *, everything: bool = False) -> bool:
        """Copy what changed."""
        masters = weights_in(self.model)
        if {id(master) for master in masters} != self._places.keys():
            return False
        if any(self._places[id(master)] != self._now(master) for master in masters):
            return False
        stamps = [stamp_of(master) for master in masters]
        changed = [
            master
            for master, old, new in zip(masters, self._stamps, stamps, strict=True)
            if everything or new is None or old != new
        ]
        with torch.inference_mode(False), torch.no_grad():  # in this order: the first turns gradients on
            for master in changed:
                _view(self._places[id(master)], self.memory).copy_(master.detach())
        self.version += bool(changed)
        self._stamps = stamps
        fingerprint = fingerprint_of(self.model)
        if not self.modules or everything or not same_fingerprint(self._fingerprint, fingerprint):
            self._fingerprint = fingerprint
            self.modules = self._pickled()
        return True

    def recipe(self) -> Recipe:
        """What a worker is started with."""
        return Recipe(self.memory, self.modules)

    def _now(self, master: torch.Tensor) -> _Where | None:
        begin, size, *_ = self._places[id(master)]
        if master.layout != torch.strided or master.untyped_storage().nbytes() != size:
            return None
        return _where(master, begin, size)

    def _pickled(self) -> bytes:
        stream = io.BytesIO()
        pickler = pickle.Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = self._persistent_id  # type: ignore[method-assign]
        try:
            pickler.dump(self.model)
        except Exception as error:  # attributes may be anything, and refuse in any way
            raise _unsendable(type(self.model).__name__, error) from error
        return stream.getvalue()

    def _persistent_id(self, value: Any) -> _Where | None:
        return self._places.get(id(value)) if isinstance(value, torch.Tensor) else None


def modules_from(modules: bytes, memory: torch.Tensor) -> nn.Module:
    """Modules around weights in shared memory."""
    made: dict[_Where, torch.Tensor] = {}

    def weight(where: _Where) -> torch.Tensor:
        if where not in made:
            view = _view(where, memory)
            made[where] = nn.Parameter(view, requires_grad=where[7]) if where[6] else view
        return made[where]

    unpickler = pickle.Unpickler(io.BytesIO(modules))
    unpickler.persistent_load = weight  # type: ignore[method-assign]
    model: nn.Module = unpickler.load()
    return model


def _where(master: torch.Tensor, begin: int, size: int) -> _Where:
    layout = master.dtype, int(master.storage_offset()), tuple(master.shape), master.stride()
    return begin, size, *layout, isinstance(master, nn.Parameter), master.requires_grad


def _view(where: _Where, memory: torch.Tensor) -> torch.Tensor:
    begin, size, dtype, offset, shape, strides, *_ = where
    if not size:
        return torch.empty(shape, dtype=dtype)
    return (
        memory[begin : begin + size].view(dtype).as_strided(shape, strides, begin // dtype.itemsize + offset)
    )


def _unsendable(what: str, error: Exception) -> FatalError:
    return FatalError(
        f"this {what} cannot be sent to a worker process ({type(error).__name__}: {error}): processes are "
        "spawned, so give dispatch a function that makes the model, at the top of an importable module"
    )
