"""What a user asks of a distributed model: its plan, its last step, its weights, to be plain again."""

from contextlib import AbstractContextManager
from pathlib import Path

from torch import nn

from baechi import run as run_room
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline


def restore(model: nn.Module, device: str = "cpu") -> nn.Module:
    """Undo `distribute`: plain forwards, all weights on one device.

    Args:
        model: a distributed model.
        device: where the weights go, as torch names it.

    Returns:
        The same model.

    Raises:
        BaechiError: the model is not distributed.
    """
    return run_room.restore(model, device)


def load(model: nn.Module, path: str | Path, *, strict: bool = True) -> nn.Module:
    """Load a safetensors checkpoint straight onto the devices of a distributed model.

    Weights on `meta` get their memory on their devices, and each tensor goes there as it is read, so the
    model may be larger than the host's memory: no more than one tensor of the checkpoint is there at a time.
    Parameters stay the same objects, ties stay ties. Floating-point values are cast to the model's dtype.

    Args:
        model: a distributed model; its weights may be on `meta` or not.
        path: a safetensors file, an index (`model.safetensors.index.json`), or the folder that has one.
        strict: every weight must be in the checkpoint (by one of its names, if tied), and nothing else.
            False loads what matches and logs the rest; a model with weights left on `meta` does not run.

    Returns:
        The same model.

    Raises:
        CheckpointError: weights are missing, unexpected, of another shape or dtype, or the checkpoint's
            files do not belong together: all are listed, and nothing was loaded.
        BaechiError: the model is not distributed, or not planned yet.
        FileNotFoundError: there is nothing at the path.
    """
    return run_room.load(model, path, strict=strict)


def plan_of(model: nn.Module) -> Plan:
    """The plan that a distributed model follows.

    Args:
        model: a distributed model.

    Raises:
        BaechiError: the model is not distributed, or not planned yet.
    """
    return run_room.plan_of(model)


def last_step(model: nn.Module) -> Timeline:
    """What was measured of a model's last step: its last call, and all that ran until its next one.

    Reading it waits for the devices.

    Args:
        model: a distributed model that was called inside `with cluster:`. On real devices that is the
            switch for timing it, by events around each layer and transfer.

    Returns:
        Spans with phase `"forward"`, `"backward"`, or `"other"` for work around the model; its
        `makespan_s` leaves the latter out, its `peak_bytes` does not.

    Raises:
        BaechiError: it is not distributed, was not called, or nothing was measured when it was.
    """
    return run_room.last_step(model)


def reordering(model: nn.Module, on: bool) -> AbstractContextManager[None]:
    """Let a model launch its layers in the plan's order, or not, for a stretch of code.

    Args:
        model: a distributed model.
        on: whether it reorders.

    Returns:
        A context manager.

    Raises:
        BaechiError: the model is not distributed (when it is entered).
    """
    return run_room.reordering(model, on)
