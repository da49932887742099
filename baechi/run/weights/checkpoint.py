"""A safetensors checkpoint: its table of contents is read first, then one tensor at a time."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from baechi.errors import CheckpointError, RecordError
from baechi.records import files
from baechi.records.schema import shown

_INDEX, _FILE = ".safetensors.index.json", ".safetensors"

_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
    "F64": torch.float64, "C64": torch.complex64,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint, as its file describes it.

    Args:
        file: the file that holds it.
        shape: its sizes.
        dtype: its dtype; the name in the file for a dtype that torch models rarely use.
    """

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype | str


class Checkpoint:
    """The tensors of one safetensors file, or of the shards that an index lists.

    Args:
        path: a file, an index (`model.safetensors.index.json`), or the folder that has one of them.

    Raises:
        CheckpointError: a folder without a checkpoint or with several, an index whose files are not
            there, not in its folder, or do not hold what it says, or a file that is no safetensors file.
        FileNotFoundError: there is nothing at the path.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _find(Path(path))
        self.entries: dict[str, Entry] = {}
        listed = _listed(self.path) if self.path.name.endswith(_INDEX) else {}
        for file in _present(dict.fromkeys(listed.values()) or [self.path]):
            self.entries.update(_entries(file))
        _check(self.path, listed, self.entries)

    def tensors(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Read tensors lazily, file after file. Release one before asking for the next, to save memory."""
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self.entries[name].file, []).append(name)
        for file, inside in by_file.items():
            with safe_open(file, framework="pt", device="cpu") as opened:
                for name in inside:
                    yield name, opened.get_tensor(name)


def _find(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint at {path}: give a safetensors file, index or folder")
    if not path.is_dir():
        return path
    for ending in (_INDEX, _FILE):
        found = sorted(path.glob(f"*{ending}"))
        if len(found) > 1:
            names = ", ".join(file.name for file in found)
            raise CheckpointError(f"{path} has several checkpoints ({names}): give the path of one")
        if found:
            return found[0]
    raise CheckpointError(f"{path} has neither a *{_FILE} file nor a *{_INDEX}")


def _listed(index: Path) -> dict[str, Path]:
    """The file of each tensor, as an index has it."""
    try:
        data = files.parsed(files.text_of(index, "index of a checkpoint"), str(index))
    except RecordError as error:
        raise CheckpointError(str(error)) from error
    names = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(names, dict) or not all([isinstance(file, str) for file in names.values()]):
        raise CheckpointError(f"{index} is no index: it has no table of files under weight_map")
    if not names:
        raise CheckpointError(f"{index} lists no tensors: its weight_map is empty")
    outside = [file for file in dict.fromkeys(names.values()) if not _is_beside(index, file)]
    if outside:
        faults = [f"{shown(file)} is no file of the folder of {index.name}" for file in outside]
        raise CheckpointError(f"{index} lists files that are not its own:", tuple(faults))
    return {name: index.parent / file for name, file in names.items()}


def _is_beside(index: Path, file: str) -> bool:
    """Whether a file that an index lists lies in its folder, or, of links, where the index itself lies.

    The cache of the Hugging Face hub is made of links, from one folder into another.
    """
    if not file or not file.isprintable() or Path(file).is_absolute() or ".." in Path(file).parts:
        return False
    lies = Path(os.path.realpath(index.parent / file))  # resolve() raises where links lead in a circle
    folders = os.path.realpath(index.parent), os.path.dirname(os.path.realpath(index))
    return any([lies.is_relative_to(folder) for folder in folders])


def _present(paths: Iterable[Path]) -> list[Path]:
    paths = list(paths)
    absent = [str(file) for file in paths if not os.path.isfile(file)]
    if absent:
        raise CheckpointError("files of the checkpoint are no regular files, or not there", tuple(absent))
    return paths


def _entries(file: Path) -> Iterator[tuple[str, Entry]]:
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():
                described = opened.get_slice(name)
                dtype = str(described.get_dtype())
                yield name, Entry(file, tuple(described.get_shape()), _DTYPES.get(dtype, dtype))
    except SafetensorError as error:
        raise CheckpointError(f"{file} is no safetensors file: {error}") from error


def _check(index: Path, listed: dict[str, Path], entries: dict[str, Entry]) -> None:
    faults = [
        f"{name} is to be in {file.name}"
        for name, file in listed.items()
        if name not in entries or entries[name].file != file
    ]
    if faults:
        raise CheckpointError(f"the files do not hold what {index} says", tuple(faults))
