"""Tensors of a model that are written in forward: microbatches share them, in their order.

That is right if they are a layer's, and are written in the one run in which it is called: running
statistics. Everything else is refused. Looked at are weights, buffers, and tensors in attributes and
containers that were there before the step.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from baechi.errors import BaechiError
from baechi.torchlib.modules.tables import content_of
from baechi.torchlib.private.modules import buffer_table, parameter_table
from baechi.torchlib.private.tensors import write_count


class _Entry(NamedTuple):
    """A name, and the run in which what it names may be written; None for nowhere."""

    name: str
    run: int | None


class SharedTensors:
    """What the tasks of a step write to tensors.

    Args:
        model: the model.
        tables: by name of the attribute that leads there, containers and attributes of objects.
        layers: by module that is a layer, its run; None if it has several.
    """

    def __init__(
        self, model: nn.Module, tables: Iterable[tuple[str, Any]], layers: Mapping[str, int | None]
    ) -> None:
        self._entries: list[_Entry] = []
        self._tensors: list[torch.Tensor] = []
        self._places: dict[str, int] = {}
        self._modules: dict[int, _Entry] = {}
        for name, module in model.named_modules():
            self._modules[id(module)] = _Entry(name, _run_of(name, layers))
            for table in (parameter_table(module), vars(module), buffer_table(module)):
                self._list(self._modules[id(module)], table)
        for name, table in tables:
            content = content_of(table)
            items = content if isinstance(content, dict) else dict(enumerate(content))
            self._list(_Entry(name, None), items)
        self._counts: list[int] = []

    def begin(self) -> None:
        """Tasks begin: what was written until now was not written by them."""
        self._counts = list(map(write_count, self._tensors))

    def unseen(self, modules: Iterable[nn.Module]) -> list[str]:
        """The buffers that no `look` has seen.

        Args:
            modules: of these.
        """
        known = set(map(id, self._tensors))
        buffers = [(module, key, value) for module in modules for key, value in buffer_table(module).items()]
        return [
            f"{type(module).__name__}.{key}"
            for module, key, value in buffers
            if isinstance(value, torch.Tensor) and id(value) not in known and not value.is_inference()
        ]

    def look(self, run: int | None, modules: Iterable[nn.Module]) -> None:
        """Note what a task wrote.

        Args:
            run: its run; None for backward, which writes where code of a checkpoint runs again.
            modules: those whose buffers may have been assigned anew.

        Raises:
            BaechiError: microbatches cannot keep it apart.
        """
        for module in modules:
            self._look_at_buffers(module, run)
        counts = list(map(write_count, self._tensors))
        if counts != self._counts:
            written = [index for index, count in enumerate(self._counts) if counts[index] != count]
            self._counts = counts
            for index in written:
                self._note(self._entries[index], run)

    def _list(self, owner: _Entry, table: Mapping[Any, Any]) -> None:
        for key, value in table.items():
            if isinstance(value, torch.Tensor) and not value.is_inference():  # that has no count
                entry = _Entry(f"{owner.name}.{key}".lstrip("."), owner.run)
                self._places[entry.name] = len(self._entries)
                self._entries.append(entry)
                self._tensors.append(value)

    def _look_at_buffers(self, module: nn.Module, run: int | None) -> None:
        owner = self._modules[id(module)]
        for key, value in buffer_table(module).items():
            if not isinstance(value, torch.Tensor) or value.is_inference():
                continue
            entry = _Entry(f"{owner.name}.{key}".lstrip("."), owner.run)
            place = self._places.get(entry.name)
            if place is None:
                self._list(owner, {key: value})
                self._counts.append(write_count(value))
            elif self._tensors[place] is not value:
                self._tensors[place], self._counts[place] = value, write_count(value)
            else:
                continue
            self._note(entry, run)

    def _note(self, entry: _Entry, run: int | None) -> None:
        if run is None:
            raise BaechiError(
                f"{entry.name} is written when backward runs a checkpoint's code again: microbatches would "
                "read it in another order. Use recompute= in place of the model's own checkpoints, or "
                "microbatches=1"
            )
        if run != entry.run:
            raise BaechiError(
                f"{entry.name} is written in forward, and not in the one stretch of code in which its layer "
                "is called: microbatches would read each other's. Keep it in a layer that is called once, or "
                "use microbatches=1"
            )


def _run_of(name: str, layers: Mapping[str, int | None]) -> int | None:
    """The run of the layer that a module is, or is a part of."""
    while name and name not in layers:
        name = name.rpartition(".")[0]
    return layers.get(name)
