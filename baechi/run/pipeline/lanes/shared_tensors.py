"""Tensors of a model that are written in forward: microbatches share them, in their order.

That is right if they are a layer's, and are written and read in the one run in which it is called: running
statistics. Everything else is refused. Looked at are weights, buffers, and tensors in attributes and
containers that were there before the step; reads are those of the model's code, outside of layers.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn

from baechi.errors import UNSPLIT_CURE, BaechiError
from baechi.run.binding import BINDING
from baechi.run.guards.refusal import DEVICE_MAP
from baechi.torchlib.modules.tables import content_of
from baechi.torchlib.private.modules import buffer_table, forward_pre_hooks, parameter_table
from baechi.torchlib.private.tensors import write_count

_NO_USERS = frozenset([*vars(nn.Module()), BINDING, DEVICE_MAP])
"""The attributes that every module has, and what `distribute` puts beside them."""

_HOOKS = tuple([key for key in vars(nn.Module()) if key.endswith("_hooks")])

_SCALARS = frozenset([bool, int, float, str, type(None), torch.dtype, torch.device, FunctionType, partial])
"""Types of which a value is no tensor and no container."""

_BUFFERS = object()


class _Owner(NamedTuple):
    """A module, or an attribute.

    Args:
        name: which one.
        run: in which its tensors may be written; None for nowhere.
        is_hooked: whether hooks run before its forward, and so in the stretch of code before.
    """

    name: str
    run: int | None
    is_hooked: bool = False


class _Entry(NamedTuple):
    """A tensor, and its group: a module's buffers are one, since no count tells of a batch norm's means."""

    owner: _Owner
    key: Any
    group: Any

    @property
    def name(self) -> str:
        return f"{self.owner.name}.{self.key}".lstrip(".")


class SharedTensors:
    """What the tasks of a step write to tensors.

    Args:
        modules: the model's, by name.
        values: what `values_of_user` found in each.
        tables: by name of the attribute that leads there, containers and attributes of objects.
        layers: by module that is a layer, its run; None if it has several.

    Attributes:
        run: what runs now; None for nothing, and in backward.
        written: what tasks wrote.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        values: Mapping[str, Sequence[tuple[str, Any]]],
        tables: Iterable[tuple[str, Any]],
        layers: Mapping[str, int | None],
    ) -> None:
        self._entries: list[_Entry] = []
        self._tensors: list[torch.Tensor] = []
        self._counts: list[int] = []
        self._first: list[int] = []
        self._modules: dict[int, _Owner] = {}
        self._buffers: dict[tuple[int, str], Any] = {}
        self._places: dict[int, int] = {}
        self._replaced: set[int] = set()
        self._read: set[tuple[_Owner, Any]] = set()  # elsewhere than in its own run
        self.written: set[tuple[_Owner, Any]] = set()
        self.run: int | None = None
        for name, module in modules.items():
            layer = name
            while layer and layer not in layers:  # what it is a part of
                layer = layer.rpartition(".")[0]
            owner = _Owner(name, layers.get(layer), bool(forward_pre_hooks(module)))
            self._modules[id(module)] = owner
            self._list(owner, parameter_table(module).items())
            self._list(owner, values[name])
            self._list(owner, buffer_table(module).items(), _BUFFERS)
            for key, value in buffer_table(module).items():
                self._buffers[id(module), key] = value
        for name, table in tables:
            content = content_of(table)
            self._list(
                _Owner(name, None), content.items() if isinstance(content, dict) else enumerate(content)
            )

    def begin(self) -> None:
        """Tasks begin: what was written until now was not written by them."""
        self._first = list(map(write_count, self._tensors))
        self._counts = list(self._first)

    def is_unwritten(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of these, and no task has written it."""
        place = self._places.get(id(tensor))
        return place is not None and place < len(self._first) and write_count(tensor) == self._first[place]

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of these."""
        return id(tensor) in self._places

    def unseen(self, modules: Iterable[nn.Module]) -> list[str]:
        """The buffers that no `look` has seen."""
        found = []
        for module in modules:
            for key, value in buffer_table(module).items():
                if self._buffers.get((id(module), key)) is not value:
                    found.append(f"{type(module).__name__}.{key}")
        return found

    def read(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note what the model's code reads, outside of layers."""
        for tensor in tensors:
            place = self._places.get(id(tensor))
            if place is not None:
                entry = self._entries[place]
                if id(tensor) in self._replaced:  # it was named before the code waited for its turn
                    raise _refusal(entry, "was assigned anew since the code named it")
                if self.run != entry.owner.run:
                    self._read.add((entry.owner, entry.group))
                    self._check(entry)

    def look(self, run: int | None, modules: Iterable[nn.Module]) -> None:
        """Note what a task wrote."""
        for module in modules:
            self._look_at_buffers(module, run)
        counts = list(map(write_count, self._tensors))
        if counts != self._counts:
            written = [index for index, count in enumerate(self._counts) if counts[index] != count]
            self._counts = counts
            for index in written:
                self._note(self._entries[index], run)

    def refuse_others(self, writers: Collection[str]) -> None:
        """Refuse what no look saw: looks have no gradients, and code may ask for these before it writes."""
        others = []
        for owner, group in self.written:
            if group is _BUFFERS and owner.name not in writers:
                others.append(owner.name)
        if others:
            raise BaechiError(
                f"{min(others)} writes its buffers where gradients are on, and not where they are off. So "
                "parts were not judged with what they write, and may train something else: "
                f"{UNSPLIT_CURE}, or say coupled='accept'"
            )

    def _list(self, owner: _Owner, items: Iterable[tuple[Any, Any]], group: Any = None) -> None:
        for key, value in items:
            # `isinstance` asks objects of other libraries what they are; inference tensors have no count
            if issubclass(type(value), torch.Tensor) and not value.is_inference():
                self._places[id(value)] = len(self._entries)
                self._entries.append(_Entry(owner, key, group or key))
                self._tensors.append(value)

    def _look_at_buffers(self, module: nn.Module, run: int | None) -> None:
        owner = self._modules[id(module)]
        for key, value in buffer_table(module).items():
            if self._buffers.get((id(module), key)) is not value:
                self._replaced.add(id(self._buffers.get((id(module), key))))
                self._replaced.discard(id(value))
                self._buffers[id(module), key] = value
                self._list(owner, [(key, value)], _BUFFERS)
                self._counts += map(write_count, self._tensors[len(self._counts) :])
                self._note(_Entry(owner, key, _BUFFERS), run)

    def _note(self, entry: _Entry, run: int | None) -> None:
        if run is None:
            raise BaechiError(
                f"{entry.name} is written when backward runs a checkpoint's code again: microbatches would "
                "read it in another order. Use recompute= in place of the model's own checkpoints, or "
                f"{UNSPLIT_CURE}"
            )
        if run != entry.owner.run:
            raise _refusal(entry, "is written in forward, and not in the one stretch of code of its layer")
        self.written.add((entry.owner, entry.group))
        self._check(entry)

    def _check(self, entry: _Entry) -> None:
        if (entry.owner, entry.group) in self._read & self.written:
            raise _refusal(entry, "is written by its layer in forward, and read in another stretch of code")


def _refusal(entry: _Entry, what: str) -> BaechiError:
    cure = "Keep it in a layer that is called once"
    if entry.owner.is_hooked:
        cure = (
            "A hook before a layer's forward runs before the layer's turn: write it in forward (as "
            "parametrizations.spectral_norm does), or place the layer on the device of the one before"
        )
    return BaechiError(
        f"{entry.name} {what}: microbatches would read each other's. {cure}, or {UNSPLIT_CURE}"
    )


def values_of_user(module: nn.Module) -> list[tuple[str, Any]]:
    """What a module's attributes, and its hooks, are: no scalars and functions, and nothing of torch's."""
    own = vars(module)
    found = []
    for key, value in own.items():
        if key not in _NO_USERS and type(value) not in _SCALARS:
            found.append((key, value))
    for key in _HOOKS:
        for hook in (own.get(key) or {}).values():
            if type(hook) not in _SCALARS:
                found.append((key, hook))
    return found
