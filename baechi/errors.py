"""Everything that baechi raises on purpose, and where in a model an error happened.

    BaechiError
    ├── FatalError             the same call would fail again
    │   ├── CaptureError       the model could not be captured or measured with these inputs
    │   ├── BatchCoupled       the rows of a batch depend on each other: its microbatches train something else
    │   ├── CompileError       the model, or a call of it, does not run as compiled stages
    │   ├── DryRunError        the model decides by values that a dry run does not know
    │   ├── PlacementError     no placement keeps the devices' memory
    │   ├── RankError          a process differs from the others, was lost, or has no values of a tensor
    │   ├── ShardedTensorError   an operation would need the whole of a sharded tensor
    │   ├── StreamRaceError    on an emulated cluster: nothing orders two accesses to one tensor
    │   └── RecordError        a graph, cluster or timeline is malformed; every fault is listed
    │       ├── PlanError      a plan is malformed, or does not match the model or the cluster
    │       └── CheckpointError    a checkpoint lacks files, or does not match the model
    ├── RecoverableError       a call with less work may succeed
    │   ├── DeviceMemoryError  a device is full
    │   └── WorkerError        a worker process ended, or did not answer
    └── AggregateError         several errors of one call

One failure keeps its own type, also if the model's code raised it; `note_where` says where it happened.
`DeviceMemoryError` is a `torch.OutOfMemoryError` as well, so it lives in `backend`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def printable(text: str) -> str:
    """The text with each character that is not to be seen as its escape: `\\x1b`, `\\n`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else one.encode("unicode_escape").decode() for one in text])


def said_by(error: BaseException) -> str:
    """What an error says; nothing if its own `__str__` raises."""
    try:
        return str(error)
    except Exception:  # the class is the user's, and may raise anything
        return ""


class BaechiError(Exception):
    """Base of every error that baechi raises on purpose. Each can be pickled, with its notes.

    Attributes:
        recoverable: whether everything is as before the call, and a call with less work may succeed.
    """

    recoverable: bool = False

    def __str__(self) -> str:
        """What happened, in lines, with nothing that a terminal would obey: names may come from files."""
        return "\n".join([printable(line) for line in super().__str__().split("\n")])

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, vars(self))


def _rebuilt(error: type[BaechiError], args: tuple[Any, ...], state: dict[str, Any]) -> BaechiError:
    """An error as it was pickled; its `__init__`, which may want other arguments, is not called."""
    made = error.__new__(error, *args)
    vars(made).update(state)
    return made


class FatalError(BaechiError):
    """The same call would fail in the same way: the model, the inputs or the plan must change."""


class UnsplittableCall(FatalError):
    """A call that microbatches cannot follow; within `with baechi.unsplit(model):` it runs as one step.

    Args:
        message: how it is called, and what to do.
        writes: whether its code writes into what it was handed.
    """

    def __init__(self, message: str, *, writes: bool = False) -> None:
        super().__init__(message)
        self.writes = writes


class RecoverableError(BaechiError):
    """Everything is as before the call, and a call with less work may succeed."""

    recoverable = True


class WorkerError(RecoverableError):
    """A worker process ended, did not answer, or made what cannot be sent.

    What it had to do is lost, and nothing else: the next call starts another one.

    Attributes:
        exit_code: the process's exit code (negative: the signal that ended it); None if it was not over.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class AggregateError(BaechiError, ExceptionGroup[Exception]):
    """Several errors of one call. `except*` takes them apart, and so do `split` and `subgroup`.

    Args:
        message: what was attempted.
        errors: the errors, in the order of the work that failed, not of the time.

    Attributes:
        recoverable: whether each of them is.
    """

    def __init__(self, message: str, errors: Sequence[Exception]) -> None:
        super().__init__(message, errors)
        self.recoverable = all(getattr(error, "recoverable", False) for error in errors)

    def derive(self, errors: Sequence[Exception]) -> "AggregateError":  # type: ignore[override]
        """A group of some of these errors, with the same message.

        Args:
            errors: some of these errors.
        """
        return AggregateError(self.message, errors)


def note_where(error: BaseException, *, layer: str, kind: str, device: str, cure: str = "") -> None:
    """Add to an error's notes where it happened."""
    error.add_note(f"in layer {layer} ({kind}) on {device}")
    if cure:
        error.add_note(cure)


def note(error: BaseException, what: str) -> None:
    """Add to an error's notes what is known of it beside its layer."""
    error.add_note(what)


UNSPLIT_CURE = "call it within `with baechi.unsplit(model):`, as one step, or leave microbatches out"
"""What to do about a call that microbatches cannot follow."""


def note_microbatch(error: BaseException, microbatch: int, cure: str = "") -> None:
    """Add to an error's notes which microbatch it happened in."""
    error.add_note(f"in microbatch {microbatch}")
    if cure:
        error.add_note(cure)


class CaptureError(FatalError):
    """The model does not run with the example inputs, or its layer graph cannot be known."""


class CompileError(FatalError):
    """A model, or a call of it, that does not run as compiled stages; the message has the line."""


@dataclass(frozen=True)
class FirstError:
    """The first error of several processes: each of them ends with it.

    Args:
        rank: the process where it happened.
        host: the machine of that process.
        type: the class of the error; `"Lost"`, `"Ended"` or `"Hang"` where a process said nothing itself.
        text: what it says.
        step: in which step; None if before the first one.
        microbatch: in which microbatch; None if in none.
        layer: in which layers, or for which others waited; empty if in none.
    """

    rank: int
    host: str
    type: str
    text: str
    step: int | None = None
    microbatch: int | None = None
    layer: str = ""

    @property
    def where(self) -> str:
        """The rank, and what is known beside it."""
        found = [f"rank {self.rank} (host {self.host})"]
        found += [f"step {self.step}"] if self.step else []
        found += [] if self.microbatch is None else [f"microbatch {self.microbatch}"]
        return ", ".join([*found, *([self.layer] if self.layer else [])])

    def __str__(self) -> str:
        return ": ".join([self.where, self.type, *([self.text] if self.text else [])])


class RankError(FatalError):
    """Over several processes: one differs from the others, was lost, or lacks the values of a tensor.

    Args:
        message: what is wrong, on which rank, and the cure.
        on_all: whether all ranks raise it at the same place, so that they are still together.
        first: the first error of all ranks, if this one says that another rank had it.

    Attributes:
        on_all, first: as given.
    """

    def __init__(self, message: str, *, on_all: bool = False, first: FirstError | None = None) -> None:
        self.on_all, self.first = on_all, first
        super().__init__(message)


class DryRunError(FatalError):
    """The model decides by values that a dry run does not know, or cannot run without values."""


class BatchCoupled(FatalError):
    """The rows of a batch depend on each other: its microbatches would train, or return, something else.

    Args:
        what: which output of the model.
        whole: what it is of the whole batch, in words.
        parts: what it is of the microbatches together, in words.
        microbatches: how many there are.
        cure: how inputs are to be split, if that is known to help.

    Attributes:
        what, whole, parts: as given.
    """

    def __init__(self, what: str, whole: str, parts: str, microbatches: int, cure: str = "") -> None:
        self.what, self.whole, self.parts = what, whole, parts
        first = f"{cure} gives the same as the whole batch. Else use" if cure else "Use"
        super().__init__(
            f"{what} is {whole} of the whole batch, and {parts} from {microbatches} microbatches: its rows "
            f"depend on each other, or inputs are split where they must not be. {first} no microbatches (for "
            "one call: `with baechi.unsplit(model):`); say what "
            'the loss of each part counts with loss_weights="rows", "sum", "labels" or a function; say what '
            'is split with split={"name": dimension or None}; or accept that parts train something else with '
            'coupled="accept"'
        )


class RecordError(FatalError, ValueError):
    """A record is malformed.

    Attributes:
        faults: every fault found, one sentence each.
        places: of a file, where each fault is (`".graph.nodes[3].weights[0]"`), and what is wrong there.
    """

    def __init__(
        self, what: str, faults: tuple[str, ...] = (), places: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self.faults, self.places = faults, places
        listed = [printable(fault) for fault in faults[:_MOST_FAULTS]]
        if len(faults) > _MOST_FAULTS:
            listed.append(f"and {len(faults) - _MOST_FAULTS:,} more")
        super().__init__("\n".join([what, *[f"  - {fault}" for fault in listed]]))


_MOST_FAULTS = 20
"""So many are printed."""


class PlanError(RecordError):
    """A plan is malformed, or does not match the model or the cluster it is used with."""


class CheckpointError(RecordError):
    """A checkpoint's files do not belong together, or it does not match the model it is loaded into."""


class PlacementError(FatalError):
    """No placement was found that fits every device's memory.

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


class ShardedTensorError(FatalError, NotImplementedError):
    """An operation would need the whole of a sharded tensor, which no device may hold."""


class StreamRaceError(FatalError):
    """Nothing orders two accesses to one piece of memory, so on real devices either may come first."""
