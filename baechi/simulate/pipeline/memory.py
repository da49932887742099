"""How full each device is while the host goes through a pipeline's list.

Allocators that order memory by streams, as torch's, give memory out when the host asks, and take it back when
the host lets go of it: what the device does in between does not matter. So the list alone decides, however
fast the devices are. What arrives from elsewhere is taken when it is sent, and given back when the last that
reads it is over: in training, its backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from baechi.records.pipeline import Task
from baechi.simulate.pipeline.costs import PipelineCosts, Send


@dataclass(frozen=True)
class PipelineMemory:
    """Bytes by device.

    Args:
        peak_bytes: the most, with the optimizer's step.
        curve: by device, `(position in the list, bytes)`: in the middle of a task, and after it.
    """

    peak_bytes: list[int]
    curve: list[list[tuple[int, int]]]


def memory_of(costs: PipelineCosts, order: Sequence[Task]) -> PipelineMemory:
    """Go through a list.

    Args:
        costs: of the pipeline.
        order: one list for the host, which can run.
    """
    return _Ledger(costs).walk(order)


class _Ledger:
    def __init__(self, costs: PipelineCosts) -> None:
        self._costs, self._units = costs, costs.units
        self._live = list(costs.bytes.always)
        self._peak = [max(pair) for pair in zip(self._live, costs.bytes.stepping, strict=True)]
        self._curve = [[(0, live)] for live in self._live]
        self._position = 0
        # by microbatch and unit: what the end of a run's forward, or of a stage's backward, gives back
        self._after_run: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._copies: dict[tuple[int, int], list[list[int]]] = {}

    def walk(self, order: Sequence[Task]) -> PipelineMemory:
        for position, task in enumerate(order):
            self._position = position
            if task.phase == "forward":
                self._forward(task.microbatch, task.unit)
            else:
                self._backward(task.microbatch, task.unit)
        return PipelineMemory(self._peak, self._curve)

    def _add(self, device: int, size_bytes: int) -> None:
        if size_bytes and device < len(self._live):
            self._live[device] += size_bytes
            self._peak[device] = max(self._peak[device], self._live[device])
            self._curve[device].append((self._position, self._live[device]))

    def _forward(self, microbatch: int, run: int) -> None:
        taken, stage = self._costs.bytes, self._units.stage_of_run[run]
        device = self._units.device_of[stage]
        for send in self._costs.uploads[run]:
            self._sent(microbatch, send)
        self._add(device, taken.peak[run])
        kept = taken.saved[run] if self._units.training else 0
        for size, until in taken.passing[run]:
            self._after_run.setdefault((microbatch, until), []).append((device, size))
            kept += size
        self._add(device, kept - taken.peak[run])
        for send in self._costs.sends[run]:
            self._sent(microbatch, send)
        for where, size in self._after_run.pop((microbatch, run), ()):
            self._add(where, -size)
        if not self._units.training:
            self._read(microbatch, run)

    def _backward(self, microbatch: int, stage: int) -> None:
        taken, device = self._costs.bytes, self._units.device_of[stage]
        rise = taken.first_peak[stage] if microbatch == 0 else taken.backward_peak[stage]
        self._add(device, rise)
        saved = sum([taken.saved[run] for run in self._units.runs_of[stage]])
        self._add(device, (taken.gradients[stage] if microbatch == 0 else 0) - rise - saved)
        for send in self._costs.returns[stage]:
            self._add(send.target, send.copy_bytes)
            self._after_run.setdefault((microbatch, ~send.readers[0]), []).append(
                (send.target, send.copy_bytes)
            )
        for where, size in self._after_run.pop((microbatch, ~stage), ()):
            self._add(where, -size)
        self._read(microbatch, stage)

    def _sent(self, microbatch: int, send: Send) -> None:
        """A copy is there from now on, until all that read it are over."""
        self._add(send.target, send.copy_bytes)
        readers = send.readers
        if self._units.training:
            readers = tuple(sorted({self._units.stage_of_run[run] for run in readers}))
        copy = [send.target, send.copy_bytes, len(readers)]
        for reader in readers:
            self._copies.setdefault((microbatch, reader), []).append(copy)

    def _read(self, microbatch: int, unit: int) -> None:
        for copy in self._copies.pop((microbatch, unit), ()):
            copy[2] -= 1
            if copy[2] == 0:
                self._add(copy[0], -copy[1])
