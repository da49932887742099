"""What was predicted of a step, beside what was measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A model, as it was predicted and as it ran.

    Args:
        model: its name.
        kind: of which kind the devices are.
        devices: how many there are.
        placer: who placed it.
        mode: `"inference"`, or the optimizer that trains it.
        simulated_s: the simulator's step.
        dry_s: the dry run's.
        measured_s: the emulated one.
        simulated_bytes, dry_bytes, measured_bytes: peaks, by device.
    """

    model: str
    kind: str
    devices: int
    placer: str
    mode: str
    simulated_s: float
    dry_s: float
    measured_s: float
    simulated_bytes: tuple[int, ...]
    dry_bytes: tuple[int, ...]
    measured_bytes: tuple[int, ...]

    @property
    def simulated(self) -> "Off":
        """How far the simulator is off."""
        return Off.of(self.simulated_s, self.simulated_bytes, self)

    @property
    def dry(self) -> "Off":
        """How far the dry run is off."""
        return Off.of(self.dry_s, self.dry_bytes, self)


@dataclass(frozen=True)
class Off:
    """How far a prediction is off, as parts of what was measured.

    Args:
        time: by how much the step is predicted longer.
        peaks: by how much peaks are predicted higher, by device; of those that hold something.
    """

    time: float
    peaks: tuple[float, ...]

    @classmethod
    def of(cls, step_s: float, peak_bytes: tuple[int, ...], row: Row) -> "Off":
        """Of a prediction.

        Args:
            step_s: the predicted step.
            peak_bytes: predicted peaks, by device.
            row: what was measured.
        """
        pairs = [pair for pair in zip(peak_bytes, row.measured_bytes, strict=True) if any(pair)]
        peaks = tuple([said / held - 1 if held else float("inf") for said, held in pairs])
        return cls(step_s / row.measured_s - 1, peaks)

    def within(self, time: float, above: float) -> bool:
        """Whether the step is near, and no peak below what was measured or far above.

        Args:
            time: how far the step may be off, either way.
            above: how far a peak may be above.
        """
        close = 1e-9  # of rounding
        near = abs(self.time) <= time + close
        return near and all(-close <= peak <= above + close for peak in self.peaks)


AIMS = {"simulated": (0.05, 0.15), "dry": (0.005, 0.01)}
"""How far steps may be off, and peaks above, by who predicts."""


def is_true(row: Row, by: str) -> bool:
    """Whether a prediction is within its aim.

    Args:
        row: a row.
        by: a key of `AIMS`.
    """
    off: Off = getattr(row, by)
    return off.within(*AIMS[by])
