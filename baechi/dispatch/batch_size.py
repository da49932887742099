"""How many rows of a chunk a device takes best: measured with the user's own rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import nn

from baechi.dispatch.chunks import Rows, Subject
from baechi.dispatch.failures import is_recoverable
from baechi.dispatch.replicas.replicas import Replicas
from baechi.dispatch.schedulers.targets import DeviceLike, one_target
from baechi.errors import FatalError
from baechi.records.inputs import Inputs

_REPEATS = 3
"""The first call of a size warms up; of the others the fastest counts."""


@dataclass(frozen=True)
class BatchTuning:
    """How long a device takes for chunks.

    Args:
        seconds: by rows, of a chunk with its way there and back; what `HybridScheduler` takes as `pace_s`.
        full: the least number of rows that was too many for the device's memory; None if all fitted.
    """

    seconds: Mapping[int, float]
    full: int | None = None

    @property
    def largest(self) -> int:
        """The most rows that fitted."""
        return max(self.seconds)

    @property
    def best(self) -> int:
        """The rows of a chunk with which most rows are done in a second; the fewer, where several are."""
        return max(self.seconds, key=lambda rows: (rows / max(self.seconds[rows], 1e-12), -rows))


def tune_batch_size(model: nn.Module, device: DeviceLike, example: Any) -> BatchTuning:
    """Measure how many rows of a chunk a device takes best.

    Chunks of 1, 2, 4, ... of the example's rows run, up to all of them, or until memory is full. Gradients
    are on or off as they are for the caller.

    Args:
        model: the model; it stays where and what it is.
        device: as `SimpleScheduler` takes it.
        example: an input, as `baechi.distribute` takes it, with as many rows as a chunk may have.

    Returns:
        Seconds by rows. `best` is a batch size for a scheduler, `seconds` its `pace_s`.

    Raises:
        FatalError: not even one row fits.
    """
    given = Inputs.of(example)
    call = Rows().open(Subject(lambda: model, lambda: model, "auto"), given.args, given.kwargs)
    target = one_target(device)
    replicas = Replicas(model, [target])
    replicas.begin()
    seconds: dict[int, float] = {}
    rows = 1
    while True:
        try:
            seconds[rows] = _fastest_s(replicas, target.name, call.arguments(0, rows))
        except Exception as error:  # the model's code may raise anything
            if not is_recoverable(error, ()):
                raise
            if not seconds:
                raise FatalError(f"{target.name} has no memory for a chunk of one row") from error
            return BatchTuning(MappingProxyType(seconds), rows)
        if rows == call.total:
            return BatchTuning(MappingProxyType(seconds))
        rows = min(2 * rows, call.total)


def _fastest_s(replicas: Replicas, name: str, calls: Any) -> float:
    found = []
    for _ in range(1 + _REPEATS):
        with replicas.backend.step():
            replica = replicas.at(name)
            launched = replica.launch(calls)
            replica.finish(launched)
        found.append(launched.taken_s)
    return min(found[1:])
