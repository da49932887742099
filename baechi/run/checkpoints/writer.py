"""How a checkpoint's folder is written: new files beside the old ones, and one rename that makes them count.

before    .metadata ──▶ 1f0c__0_0.distcp                        a kill, a full disk: the former counts
beside    .metadata ──▶ 1f0c__0_0.distcp    77ab__0_0.distcp    rank 0 has seen that all files are there
after     .metadata ──▶ 77ab__0_0.distcp                        other files of the folder stay
"""

import re
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

from baechi.errors import CheckpointError, said_by

METADATA = ".metadata"
"""The file of a checkpoint that says what lies where in the others."""

_DATA = re.compile(r"([0-9a-f]{8})?__\d+_\d+\.distcp")


def write(state: Mapping[str, Any], folder: Path, group: Any = None) -> None:
    """Write a checkpoint of what all processes of a group have, or this one alone.

    Raises:
        CheckpointError: on all of them, if one failed; the former checkpoint is as it was.
    """
    writer = _Writer(folder)
    try:
        with quietly():
            state_dict_saver.save(
                dict(state), storage_writer=writer, process_group=group, no_dist=group is None
            )
    except CheckpointException as error:  # no Exception: torch catches interrupts as well
        writer.drop()
        raise _told(error, folder, alone=group is None) from error


def _told(error: CheckpointException, folder: Path, *, alone: bool) -> BaseException:
    rank, (first, _) = min(error.failures.items())
    if not isinstance(first, Exception):
        return first
    who = "" if alone else f"rank {rank}: "
    former = (
        "the former checkpoint there is as it was" if (folder / METADATA).exists() else "there is none now"
    )
    return CheckpointError(
        f"no checkpoint was saved in {folder}, {former}: {who}{type(first).__name__}: {said_by(first)}"
    )


@contextmanager
def quietly() -> Iterator[None]:
    """Within this context torch does not remark that one process reads or writes alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")
        yield


class _Files(FileSystem):
    """Files of which none is removed by torch's writer: its last step renames, which replaces."""

    def rm_file(self, path: Any) -> None:
        del path


class _Writer(FileSystemWriter):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fs = _Files()
        self._folder, self._mark = folder, uuid.uuid4().hex[:8]

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        self.fs.mkdir(self._folder)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Let all files have the first rank's mark."""
        return [
            replace(
                plan, storage_data=replace(plan.storage_data, prefix=self._mark + plan.storage_data.prefix)
            )
            for plan in super().prepare_global_plan(plans)
        ]

    def finish(self, metadata: Metadata, results: Any) -> None:
        """On the first rank, when all have written: let the new files count, and remove the former ones."""
        named = {one.storage_data.relative_path for each in results for one in each}
        unseen = [name for name in sorted(named) if not (self._folder / name).is_file()]
        if unseen:
            raise FileNotFoundError(
                f"{unseen[0]}, which another process wrote, is not in {self._folder} here: give a folder "
                "of a file system that all hosts share"
            )
        super().finish(metadata, results)
        for file in self._data():
            if file.name not in named:
                file.unlink(missing_ok=True)

    def drop(self) -> None:
        """Remove what was written for nothing."""
        for file in self._data():
            if file.name.startswith(self._mark):
                file.unlink(missing_ok=True)

    def _data(self) -> Iterator[Path]:
        return (file for file in self._folder.glob("*.distcp") if _DATA.fullmatch(file.name))
