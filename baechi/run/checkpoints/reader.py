"""A checkpoint's folder, read by names; what is wanted is read, and nothing else.

Its table and its small values are pickles. Of these, only tensors, numbers and containers are read, so that
reading a file runs no code.
"""

import io
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as tables
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.planner import ReadItem

from baechi.errors import CheckpointError, said_by
from baechi.run.checkpoints.writer import METADATA, quietly
from baechi.run.weights.checkpoint import Entry
from baechi.torchlib.shards.weight import ShardedWeight

EXTRA = "_extra_state"
"""The last part of the name under which a module keeps what is no weight."""

Keys = tuple[str | int, ...]
"""Where a value lies in what was saved: keys of dicts, and numbers in lists."""


class Stored:
    """A checkpoint of `torch.distributed.checkpoint`.

    Args:
        path: its folder.

    Attributes:
        path: as given.
        entries: of its model, by name.
        parts: what it has.

    Raises:
        CheckpointError: its table is damaged, or holds what could run code.
        FileNotFoundError: there is none.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not is_stored(self.path):
            raise FileNotFoundError(f"there is no checkpoint in {self.path}")
        self._table = _table_of(self.path / METADATA)
        known: Mapping[str, Keys] = self._table.planner_data or {}
        self._keys = {tuple(known.get(key, (key,))): key for key in self._table.state_dict_metadata}
        self.parts = sorted({str(keys[0]) for keys in self._keys})
        self._root: Keys = ("model",) if "model" in self.parts else ()
        self.entries = dict(self._model())

    def tensors(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Tensors of its model, one by one. Release one before asking for the next, to save memory."""
        for name in names:
            keys = (*self._root, name)
            yield name, self._loaded({self._keys[keys]: self._room(keys, None)})[self._keys[keys]]

    def others(self) -> dict[str, Any]:
        """What its model has beside tensors that are weights, by name."""
        last = len(self._root)
        extra = [
            str(keys[last]) for keys in self._keys if keys[:last] == self._root and _is_extra(keys[last])
        ]
        return self.read(self._root, dict.fromkeys(extra))

    def read(self, below: Sequence[str | int], wanted: Mapping[str, torch.Tensor | None]) -> dict[str, Any]:
        """Values below some keys, in dicts and lists as they were saved; what is not there is left out.

        Args:
            below: the keys above them.
            wanted: their own keys; with a weight, values of its shape are read to its device.
        """
        depth = len(below)
        chosen = {
            keys: key
            for keys, key in self._keys.items()
            if keys[:depth] == tuple(below) and len(keys) > depth and keys[depth] in wanted
        }
        values = self._loaded(
            {key: self._room(keys, wanted[str(keys[depth])]) for keys, key in chosen.items()}
        )
        found: dict[str, Any] = (
            _nested({keys[depth:]: values[key] for keys, key in chosen.items()}) if chosen else {}
        )
        return found

    def _model(self) -> Iterator[tuple[str, Entry]]:
        for keys, key in self._keys.items():
            one = self._table.state_dict_metadata[key]
            if keys[:-1] == self._root and isinstance(one, tables.TensorStorageMetadata):
                if not _is_extra(keys[-1]):
                    yield str(keys[-1]), Entry(self.path, tuple(one.size), one.properties.dtype)

    def _room(self, keys: Keys, weight: torch.Tensor | None) -> Any:
        one = self._table.state_dict_metadata[self._keys[keys]]
        if not isinstance(one, tables.TensorStorageMetadata):
            return None
        plain = weight is not None and not weight.is_meta and not isinstance(weight, ShardedWeight)
        beside = plain and weight is not None and len(one.size) > 0 and weight.shape == one.size
        device = weight.device if beside and weight is not None else torch.device("cpu")
        return torch.empty(one.size, dtype=one.properties.dtype, device=device)

    def _loaded(self, rooms: dict[str, Any]) -> dict[str, Any]:
        try:
            with quietly():
                state_dict_loader.load(
                    rooms,
                    storage_reader=_Reader(self.path, self._table),
                    planner=_Planner(flatten_state_dict=False, flatten_sharded_tensors=False),
                    no_dist=True,
                )
        except CheckpointException as error:  # no Exception: torch catches interrupts as well
            _, (first, _) = min(error.failures.items())
            if isinstance(first, CheckpointError) or not isinstance(first, Exception):
                raise first from error
            raise CheckpointError(f"{self.path}: {type(first).__name__}: {said_by(first)}") from error
        return rooms


def _is_extra(name: object) -> bool:
    return str(name).rpartition(".")[2] == EXTRA


def is_stored(path: Path) -> bool:
    """Whether a folder has a checkpoint of `torch.distributed.checkpoint`."""
    return (path / METADATA).is_file()


class _Reader(FileSystemReader):
    def __init__(self, path: Path, table: tables.Metadata) -> None:
        super().__init__(path)
        self._table = table

    def read_metadata(self, *args: Any, **kwargs: Any) -> tables.Metadata:
        del args, kwargs
        return self._table


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            self.state_dict[name] = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{name} is no tensor, number, text or container of those, and reading it could run code: if "
                "you trust the file, name its class with torch.serialization.add_safe_globals"
            ) from error


class _Unpickler(pickle.Unpickler):
    """Reads the table, which has classes of torch's checkpoints, dtypes and containers, and no functions."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if self._is_known(module, name) else None
        if found is None:
            raise CheckpointError(
                f"the table of a checkpoint names {module}.{name}, which is none of its words"
            )
        return found

    @staticmethod
    def _is_known(module: str, name: str) -> bool:
        if module == tables.__name__ or (module, name) == ("torch.serialization", "_get_layout"):
            return True
        if module == FileSystemReader.__module__:
            return name == "_StorageInfo"
        if module == "torch":
            return name == "Size" or isinstance(getattr(torch, name, None), torch.dtype)
        if module.startswith("pathlib"):
            return name in ("Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
        return (module, name) in (("collections", "OrderedDict"), ("builtins", "set"))


def _table_of(file: Path) -> tables.Metadata:
    try:
        found = _Unpickler(io.BytesIO(file.read_bytes())).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file} is no table of a checkpoint: {said_by(error)}") from error
    if not isinstance(found, tables.Metadata) or not isinstance(found.state_dict_metadata, dict):
        raise CheckpointError(f"{file} is no table of a checkpoint: it is a {type(found).__name__}")
    return found


def _nested(values: Mapping[Keys, Any]) -> Any:
    """Values by their keys, as the dicts and lists that they were in."""
    if () in values:
        return values[()]
    below: dict[str | int, dict[Keys, Any]] = {}
    for (first, *rest), value in values.items():
        below.setdefault(first, {})[tuple(rest)] = value
    made = {key: _nested(each) for key, each in below.items()}
    return [made[key] for key in sorted(made)] if all(isinstance(key, int) for key in made) else made
