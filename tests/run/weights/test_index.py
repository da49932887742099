"""An index of a checkpoint lists regular files of its own folder; anything else is refused by name."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from baechi.errors import CheckpointError
from baechi.run.weights.checkpoint import Checkpoint

INDEX = "model.safetensors.index.json"


def indexed(folder: Path, file: object) -> Path:
    """An index that lists one file."""
    folder.mkdir(exist_ok=True)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"w": file}}))
    return folder / INDEX


@pytest.mark.parametrize(
    "file",
    ["../outside.safetensors", "/outside.safetensors", "link.safetensors", "inner/../../outside.safetensors",
     "", ".", "folder", "fifo", "\0", "n" * 5000, "missing.safetensors", 5,
     None, ["one.safetensors"], "\x1b[2J"],
)  # fmt: skip
def test_it_stays_in_its_folder(file: object, tmp_path: Path) -> None:
    """Nothing outside is read, no pipe is waited for, and names are shown, not obeyed."""
    save_file({"w": torch.ones(2)}, tmp_path / "outside.safetensors")
    index = indexed(tmp_path / "model", f"{tmp_path}{file}" if file == "/outside.safetensors" else file)
    (index.parent / "link.safetensors").symlink_to(tmp_path / "outside.safetensors")
    (index.parent / "folder").mkdir()
    os.mkfifo(index.parent / "fifo")
    with pytest.raises(CheckpointError) as raised:
        Checkpoint(index)
    assert all(line.isprintable() for line in str(raised.value).split("\n"))


def test_links_of_a_cache(tmp_path: Path) -> None:
    """The hub's cache: index and files are links into one other folder. Folders inside count, too."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    indexed(blobs, "one.safetensors").rename(blobs / "aa")
    save_file({"w": torch.ones(2)}, blobs / "bb")
    (snapshot / INDEX).symlink_to("../../blobs/aa")
    (snapshot / "one.safetensors").symlink_to("../../blobs/bb")
    assert set(Checkpoint(snapshot).entries) == {"w"}
    (tmp_path / "model" / "parts").mkdir(parents=True)
    save_file({"w": torch.ones(2)}, tmp_path / "model" / "parts" / "one.safetensors")
    assert set(Checkpoint(indexed(tmp_path / "model", "parts/one.safetensors")).entries) == {"w"}


@pytest.mark.parametrize("name", ["fifo.safetensors", INDEX])
def test_a_pipe_is_no_checkpoint(name: str, tmp_path: Path) -> None:
    """It is not waited for."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match="no regular file"):
        Checkpoint(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"weight_map": []}', "[" * 10**5, '{"weight_map": {"w": "a", "w": "b"}}', "9" * 5000],
)
def test_no_index(text: str, tmp_path: Path) -> None:
    """Whatever else the file holds."""
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(CheckpointError):
        Checkpoint(tmp_path)


def test_links_in_a_circle(tmp_path: Path) -> None:
    """A file that is a link to itself is no file."""
    index = indexed(tmp_path, "loop.safetensors")
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    with pytest.raises(CheckpointError, match="no regular files, or not there"):
        Checkpoint(index)


def test_an_index_of_nothing(tmp_path: Path) -> None:
    """It says so, in place of what a tensor file lacks."""
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {}}))
    with pytest.raises(CheckpointError, match="its weight_map is empty"):
        Checkpoint(tmp_path)
