"""The contract of errors: what can be retried says so, and no error loses anything on its way."""

import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import baechi
from baechi.errors import (
    AggregateError,
    BaechiError,
    BatchCoupled,
    CaptureError,
    CheckpointError,
    CompileError,
    DryRunError,
    FatalError,
    PlacementError,
    PlanError,
    RankError,
    RecordError,
    RecoverableError,
    ShardedTensorError,
    StreamRaceError,
    UnsplittableCall,
    WorkerError,
    note_where,
)

FAULTS = ("layer 'a' lies on no device", "layer 'b' lies on two")
EXAMPLES = [
    BaechiError("this model is not distributed"),
    FatalError("it cannot work"),
    RecoverableError("a smaller chunk may work"),
    CaptureError("the model does not run"),
    BatchCoupled("the loss", "2.5", "2.25", 4, "split={'scale': None}"),
    CompileError("this model decides by values"),
    DryRunError("the model decides by values"),
    RankError("rank 1 has another batch than rank 0"),
    RecordError("the graph is malformed:", FAULTS),
    PlanError("the plan is malformed:", FAULTS),
    CheckpointError("the files do not belong together:", FAULTS),
    PlacementError("no placement keeps the memory", layer="a", short_bytes={"cpu:0": 512}),
    ShardedTensorError("a view of a sharded tensor"),
    UnsplittableCall("forward writes to what it was given", writes=True),
    StreamRaceError("add reads what mul writes"),
    baechi.DeviceMemoryError(
        "add in layer a", device="cpu:0", needed_bytes=4096, live_bytes=6000, memory_bytes=8192
    ),
    WorkerError("worker 1 on cpu ended with exit code 9 while it had a chunk", 9),
    AggregateError("2 of 4 chunks failed", [RecordError("chunk 0:", FAULTS), KeyError("mask")]),
]


def classes(error: type[BaechiError] = BaechiError) -> Iterator[type[BaechiError]]:
    """A class of errors, and all that derive from it."""
    yield error
    for derived in error.__subclasses__():
        yield from classes(derived)


def of_baechi() -> set[type[BaechiError]]:
    return {error for error in classes() if error.__module__.startswith("baechi.")}


def test_every_class_is_public_and_has_an_example() -> None:
    """The tests below are about all classes that there are."""
    assert of_baechi() == {type(error) for error in EXAMPLES}
    assert {error.__name__ for error in of_baechi()} <= set(baechi.__all__)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_can_be_sent(error: BaechiError) -> None:
    """To another process, with message, attributes and notes."""
    note_where(error, layer="left.0", kind="Linear", device="cpu:1")
    sent = pickle.loads(pickle.dumps(error))
    assert type(sent) is type(error)
    assert str(sent) == str(error)
    assert sent.recoverable is error.recoverable
    ours, theirs = dict(vars(error)), dict(vars(sent))
    assert ours.pop("__notes__") == theirs.pop("__notes__") == ["in layer left.0 (Linear) on cpu:1"]
    assert ours == theirs
    assert "".join(traceback.format_exception(sent)) == "".join(traceback.format_exception(error))


def test_messages_are_complete() -> None:
    """What is wrong, with which values, and the cure."""
    said = {type(error): str(error) for error in EXAMPLES}
    assert all(
        fault in said[error] for fault in FAULTS for error in (RecordError, PlanError, CheckpointError)
    )
    memory = said[baechi.DeviceMemoryError]
    parts = ("cpu:0", "layer a", "4,096 bytes", "6,000 of 8,192", "1,904 are missing", "a smaller batch")
    assert [part for part in parts if part not in memory] == []


def test_what_can_be_retried() -> None:
    """Too large a call can be made smaller; all else fails again, and so does what nobody knows."""
    assert {error for error in of_baechi() if error.recoverable} == {
        RecoverableError,
        baechi.DeviceMemoryError,
        WorkerError,
    }
    for error in of_baechi() - {BaechiError, AggregateError}:
        assert issubclass(error, RecoverableError if error.recoverable else FatalError)
    assert issubclass(baechi.DeviceMemoryError, torch.OutOfMemoryError)


def several() -> AggregateError:
    full = baechi.DeviceMemoryError("add", device="cpu:0", needed_bytes=8, live_bytes=0, memory_bytes=4)
    note_where(full, layer="a", kind="Linear", device="cpu:0")
    return AggregateError("3 of 4 chunks failed", [full, KeyError("mask"), RecoverableError("diverged")])


def test_groups_split_by_recoverable() -> None:
    """A group is recoverable if each of its errors is; its halves are groups of the same kind."""
    group = several()
    again, fatal = group.split(lambda error: getattr(error, "recoverable", False))
    assert isinstance(again, AggregateError) and isinstance(fatal, AggregateError)
    assert (group.recoverable, again.recoverable, fatal.recoverable) == (False, True, False)
    assert [type(error) for error in again.exceptions] == [baechi.DeviceMemoryError, RecoverableError]
    assert [type(error) for error in fatal.exceptions] == [KeyError]
    assert again.message == fatal.message == group.message
    assert AggregateError("all of it", [again, fatal]).recoverable is False
    assert AggregateError("all of it", [again, again]).recoverable is True


def test_groups_are_taken_apart_by_type() -> None:
    """`except*` gives each handler its part, and `except BaechiError` catches all."""
    caught: list[tuple[str, int]] = []
    try:
        raise several()
    except* RecoverableError as part:
        caught.append(("recoverable", len(part.exceptions)))
    except* KeyError as part:
        caught.append(("foreign", len(part.exceptions)))
    assert caught == [("recoverable", 2), ("foreign", 1)]
    with pytest.raises(BaechiError, match="3 of 4 chunks"):
        raise several()


def test_groups_show_each_error() -> None:
    """A traceback has every message and every note."""
    shown = "".join(traceback.format_exception(several()))
    parts = ("3 of 4 chunks failed", "cpu:0 is out of memory", "in layer a (Linear) on cpu:0", "'mask'")
    assert [part for part in (*parts, "diverged") if part not in shown] == []


def test_one_function_notes_where() -> None:
    """All notes have its wording."""
    package = Path(baechi.__file__).parent
    noting = [path.name for path in package.rglob("*.py") if "add_note" in path.read_text()]
    assert noting == ["errors.py"]


def test_notes_of_nested_layers() -> None:
    """An error that leaves a layer inside of another has the inner note first; a cure follows its place."""
    error = ValueError("broken")
    note_where(error, layer="a.b", kind="Part", device="cpu:1", cure="hand it over as an argument")
    note_where(error, layer="a", kind="Block", device="cpu:0")
    assert error.__notes__ == [
        "in layer a.b (Part) on cpu:1",
        "hand it over as an argument",
        "in layer a (Block) on cpu:0",
    ]
