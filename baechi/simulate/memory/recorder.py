"""Bytes on each device over time: wraps the watcher that counts bytes, for plans that are displayed.

A search simulates thousands of plans and needs their peaks only, so this is separate from `Memory`.
A watcher is not told the time, so the times are looked up after the phase.
"""

from collections.abc import Sequence

from baechi.simulate.memory.watching import Memory
from baechi.simulate.time.engine import Engine
from baechi.simulate.time.transfers import Transfer
from baechi.simulate.time.watcher import Watcher

_START, _END = 0, 1


class Recorder:
    """Forwards each event to a watcher, and records the bytes on the devices after it.

    Args:
        memory: where the bytes are counted.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._watcher: Watcher
        self._curve = [(0.0, tuple(memory.live_bytes))]
        self._notes: list[tuple[int | Transfer, int, tuple[int, ...]]] = []

    def over(self, watcher: Watcher) -> Watcher:
        """Record a phase: forward its events to a watcher first.

        Args:
            watcher: the watcher that counts the phase's bytes.

        Returns:
            The recorder itself.
        """
        self._watcher = watcher
        return self

    def started(self, layer: int) -> None:
        """A layer starts."""
        self._watcher.started(layer)
        self._note(layer, _START)

    def ended(self, layer: int) -> None:
        """A layer has ended."""
        self._watcher.ended(layer)
        self._note(layer, _END)

    def left(self, transfer: Transfer) -> None:
        """A transfer leaves."""
        self._watcher.left(transfer)
        self._note(transfer, _START)

    def arrived(self, transfer: Transfer) -> None:
        """A transfer has arrived."""
        self._watcher.arrived(transfer)
        self._note(transfer, _END)

    def _note(self, what: int | Transfer, end: int) -> None:
        self._notes.append((what, end, tuple(self._memory.live_bytes)))

    def phase_over(self, engine: Engine) -> None:
        """Add the times to what was recorded in a phase.

        Args:
            engine: the engine that ran the phase.
        """
        times: dict[int | Transfer, tuple[float, float]] = {}
        times.update({layer: (start_s, end_s) for layer, start_s, end_s in engine.ran})
        times.update({engine.transfers[number]: (start_s, end_s) for number, start_s, end_s in engine.moved})
        self._curve += [(times[what][end], live) for what, end, live in self._notes]
        self._notes.clear()

    def by_device(self, names: Sequence[str], end_s: float) -> dict[str, tuple[tuple[float, int], ...]]:
        """The bytes that each device held, from the start of forward to the optimizer's step.

        Args:
            names: the devices.
            end_s: when the last phase was over.

        Returns:
            By device, `(seconds, bytes)` where its bytes change; of changes at one time, the last.
        """
        if len(self._curve) == 1:  # no events were recorded: `Memory` keeps a curve of its own
            ends = zip(names, self._memory.curve, self._memory.stepping_bytes, strict=True)
            curves = [(name, [*curve, (end_s, last)]) for name, curve, last in ends]
            return {name: _steps(*zip(*curve, strict=True)) for name, curve in curves}
        curve = [*self._curve, (end_s, tuple(self._memory.stepping_bytes))]
        columns = zip(*[live for _, live in curve], strict=True)
        times = [time_s for time_s, _ in curve]
        return {name: _steps(times, column) for name, column in zip(names, columns, strict=True)}


def _steps(times: Sequence[float], sizes: Sequence[int]) -> tuple[tuple[float, int], ...]:
    steps: list[tuple[float, int]] = []
    for time_s, size in zip(times, sizes, strict=True):
        if steps and time_s == steps[-1][0] and size > steps[-1][1]:
            steps.pop()
        if not steps or size != steps[-1][1]:
            steps.append((time_s, size))
    return tuple(steps)
