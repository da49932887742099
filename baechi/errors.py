"""Everything that baechi raises on purpose.

    BaechiError
    ├── CaptureError       the model could not be captured or measured with these inputs
    ├── PlacementError     no placement keeps the devices' memory
    ├── StreamRaceError    on an emulated cluster: nothing orders two accesses to one tensor
    └── RecordError        a graph, cluster or timeline is malformed; every fault is listed
        ├── PlanError      a plan is malformed, or does not match the model or the cluster
        └── CheckpointError    a checkpoint lacks files, or does not match the model

`DeviceMemoryError` is a `torch.OutOfMemoryError` as well, so it lives in `backend`.
"""

from collections.abc import Mapping


class BaechiError(Exception):
    """Base of every error that baechi raises on purpose."""


class CaptureError(BaechiError):
    """The model does not run with the example inputs, or its layer graph cannot be known."""


class RecordError(BaechiError, ValueError):
    """A record is malformed.

    Attributes:
        faults: every fault found, one sentence each.
    """

    def __init__(self, what: str, faults: tuple[str, ...] = ()) -> None:
        self.faults = faults
        super().__init__("\n".join([what, *(f"  - {fault}" for fault in faults)]))


class PlanError(RecordError):
    """A plan is malformed, or does not match the model or the cluster it is used with."""


class CheckpointError(RecordError):
    """A checkpoint's files do not belong together, or it does not match the model it is loaded into."""


class PlacementError(BaechiError):
    """No placement was found that keeps every device's memory.

    Attributes:
        layer: the layer (or the first layer of the group) that found no place; None if unknown.
        short_bytes: for each device, how many bytes the layer was short there.
    """

    def __init__(
        self, message: str, *, layer: str | None = None, short_bytes: Mapping[str, int] | None = None
    ) -> None:
        self.layer = layer
        self.short_bytes = dict(short_bytes or {})
        super().__init__(message)


class StreamRaceError(BaechiError):
    """Nothing orders two accesses to one piece of memory, so on real devices either may come first."""
