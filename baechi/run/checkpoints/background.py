"""Saving while training goes on: a copy on the host is made at once, and a thread writes it.

Over ranks their threads meet in a group of their own, so that nothing of a step waits for them.
"""

import copy
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from baechi.backend.ranks.limits import limit_s
from baechi.errors import BaechiError, RankError, said_by
from baechi.run.checkpoints.writer import write


class Saving:
    """A checkpoint that is being written.

    Args:
        future: of the thread.
    """

    def __init__(self, future: "Future[None]") -> None:
        self._future, self.asked = future, False

    def done(self) -> bool:
        """Whether it is over."""
        return self._future.done()

    def result(self) -> None:
        """Wait until it is over; raises what went wrong."""
        self.asked = True
        self._future.result()


_latest: list[Saving] = []


def begin_writing(state: Mapping[str, Any], folder: Path, *, in_ranks: bool) -> Saving:
    """Begin to write a checkpoint; what is given may change from now on."""
    wait_for_latest()
    group, held = _group() if in_ranks else None, _copied(state, {})
    _latest[:] = [Saving(_thread().submit(_written, held, folder, group))]
    return _latest[0]


def wait_for_latest() -> None:
    """Wait until nothing is being written; an error that nobody asked for is raised."""
    while _latest:
        saving = _latest.pop()
        if not saving.asked:
            saving.result()


def _written(state: Mapping[str, Any], folder: Path, group: Any) -> None:
    try:
        write(state, folder, group)
    except RuntimeError as error:  # gloo's own
        if isinstance(error, BaechiError):
            raise
        raise RankError(
            f"no checkpoint was saved in {folder}: another rank was lost; torch says: {said_by(error)}"
        ) from error


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "baechi-save")


@cache
def _group() -> Any:
    return distributed.new_group(timeout=timedelta(seconds=limit_s()), backend="gloo")


def _copied(value: Any, known: dict[int, torch.Tensor]) -> Any:
    """A copy on the host; what is tied is copied once."""
    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            known[id(value)] = value.detach().to("cpu", copy=True)
        return known[id(value)]
    if isinstance(value, Mapping):
        return {key: _copied(one, known) for key, one in value.items()}
    return [_copied(one, known) for one in value] if type(value) is list else copy.deepcopy(value)
