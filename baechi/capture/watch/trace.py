"""What happened while the model ran once, as plain data: calls, operations, storages.

The modes and stand-ins of `watch` write it; `build` reads it and decides what becomes a node, so
granularity is decided after the fact and the model runs once.

    Trace
    ├── storages   what memory there was: weights, inputs, and what operations made
    └── events     Enter(call) .. Op .. HostWait .. Op .. Exit(call), in code order
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from baechi.records.device import HostWork
from baechi.records.device_map import ROOT

TO = "to"
OF_DATA = frozenset(("tensor", "as_tensor", "asarray", "new_tensor"))
"""Functions that make a tensor of numbers, which come from the host."""


class Origin(IntEnum):
    """What memory was computed from: the largest of what took part."""

    NOTHING = 0
    INPUTS = 1
    WEIGHTS = 2
    """A layer's weights, or a device that the code asked for: it lies on a device."""


@dataclass(slots=True, eq=False)
class Storage:
    """Memory behind one or more tensors.

    Args:
        index: its number in the trace.
        size_bytes: how large it is.
        weight: the first qualified name of a parameter or buffer in it; None if it is no weight.
        parameter: whether a parameter lies in it (else it is a buffer's).
        trained: whether a parameter in it requires a gradient, and gets one where backward ran.
        input: path of the model input it came in with, if it did.
        origin: what it was computed from.
        saved: whether autograd kept it for backward.
        savers: numbers of the operations for whose backward it was kept.
        requires_grad: whether a tensor in it takes part in backward.
        died: number of the event at which its last reference died (numbers continue through
            backward); None if it outlived the run.
        names: how many tensors in it the model's code holds now.
        forgotten: number of the event at which the last of these died; autograd may keep the storage.
    """

    index: int
    size_bytes: int
    weight: str | None = None
    parameter: bool = False
    trained: bool = False
    input: str | None = None
    origin: Origin = Origin.NOTHING
    saved: bool = False
    savers: set[int] = field(default_factory=set)
    requires_grad: bool = False
    died: int | None = None
    names: int = 0
    forgotten: int | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """A tensor that was read or made.

    Args:
        storage: its memory.
        view: offset, sizes and strides, which tell two views of one storage apart.
        size_bytes: what travels if it is sent.
        copy_bytes: the memory that its copy takes then.
        requires_grad: whether it sends a gradient back.
        object: a number for the very tensor: a view of the same shape is another one.
    """

    storage: Storage
    view: tuple[object, ...]
    size_bytes: int
    copy_bytes: int
    requires_grad: bool
    object: int


@dataclass(slots=True, eq=False)
class Call:
    """One call of one module's forward.

    Args:
        module: qualified name; "" is the root.
        type: class name.
        turn: how many calls of the module came before.
        parent: the call it was made in; None for the root.
        leaf: whether the module has no children that could be layers.
        inside: every module called within, by qualified name.
    """

    module: str
    type: str
    turn: int
    parent: "Call | None"
    leaf: bool
    inside: set[str] = field(default_factory=set)

    @property
    def node(self) -> str:
        """The name of its node, if it is a layer."""
        name = self.module or ROOT
        return f"{name}#{self.turn}" if self.turn else name


@dataclass(slots=True, eq=False)
class Function:
    """One outermost call of a torch function, such as `torch.cat` or `x + y`.

    Args:
        name: its name.
        reads: the tensors it was given.
        whole: whether all of them must lie on one device (an `autograd.Function`, whose backward
            reads what its forward saved).
        bound: whether it runs where its inputs say: it draws random numbers, or backward may run it again.
        beside: of a function that makes a tensor on a device (`torch.arange(n, device=x.device)`): the
            memory of the tensor whose device that is.
    """

    name: str
    reads: tuple[Use, ...]
    whole: bool = False
    bound: bool = False
    beside: Storage | None = None


@dataclass(frozen=True, slots=True)
class Boundary:
    """Control enters a call with its arguments, or leaves it with its outputs.

    Args:
        kind: which of both.
        call: the call.
        uses: the tensors among them.
        alone: whether a tensor is all there is, in no tuple or other container.
    """

    kind: Literal["enter", "exit"]
    call: Call
    uses: tuple[Use, ...]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """One operation that computed or wrote something (views and queries are none).

    Args:
        name: the operator's name.
        call: the innermost module call around it.
        function: the torch function it belongs to, if one was called by name.
        reads, writes, makes: tensors it read, wrote in place, and made anew.
        flops: arithmetic operations, where the operator has a formula.
        moved_bytes: bytes read and written.
        dtype: name of the dtype it computes in.
        kernel: whether it computes something; making room does not.
        sequence: the number that the next autograd node gets; the operation's own has the one before.
        region: of the regions that the code checkpoints, the one that it is in, counted from 1; 0 for none.
        draws: whether it draws random numbers.
        host_work: what torch does on the host for it, and since the operation before.
    """

    name: str
    call: Call
    function: Function | None
    reads: tuple[Use, ...]
    writes: tuple[Use, ...]
    makes: tuple[Use, ...]
    flops: int
    moved_bytes: int
    dtype: str
    kernel: bool
    sequence: int
    region: int = 0
    draws: bool = False
    host_work: Mapping[HostWork, int] = field(default_factory=dict)

    @property
    def brings(self) -> bool:
        """Whether it copies to a device what was made on the host."""
        return self.name == "clone" and self.function is not None and self.function.name in (TO, *OF_DATA)

    @property
    def is_of_nothing(self) -> bool:
        """Whether what it makes lies on the host until something else reads it."""
        uses = (*self.reads, *self.writes, *self.makes)
        return not self.brings and all(use.storage.origin is Origin.NOTHING for use in uses)


@dataclass(frozen=True, slots=True)
class HostWait:
    """The host waits for values: the code branches on them, or a shape follows from them.

    Args:
        uses: the tensors whose values it waits for.
        kernels: how many bring them; none where an operation did that is a tensor's own maker.
    """

    uses: tuple[Use, ...]
    kernels: int


@dataclass(frozen=True, slots=True)
class BackwardOp:
    """One operation of the backward.

    Args:
        sequence: number of the autograd node that ran it; -1 for none.
        takers: if it adds a gradient that the node made to one that is there: the nodes that may be the one
            which takes it.
        makes: storages that it made.
        flops, moved_bytes, kernel, host_work: as for `Op`.
        again: whether a region runs again in it.
    """

    sequence: int
    takers: tuple[int, ...]
    makes: tuple[Storage, ...]
    flops: int
    moved_bytes: int
    kernel: bool
    host_work: Mapping[HostWork, int]
    again: bool = False


Event = Boundary | Op | HostWait


@dataclass(slots=True)
class Trace:
    """One run of the model.

    Args:
        training: whether it ran in training mode, with gradients.
        storages: every storage seen.
        events: what happened, in code order.
        weights: storage of each parameter and buffer, by qualified name (ties have several names).
        gone: by number of a tensor (`Use.object`), the event before which nothing held it any more.
        replaced: by name of a buffer that the model's code assigned anew, the storage that it has now.
        modules: class name of every module, by qualified name.
        uncounted: operators that compute a lot, but have no formula for their flops.
        backward: what the backward did, in its order; None if it did not run.
        losses: the numbers of the outputs where backward begins.
        gradients: storages of the gradients of parameters, when backward was over.
    """

    training: bool
    storages: list[Storage] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    weights: dict[str, Storage] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)
    replaced: dict[str, Storage] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    uncounted: set[str] = field(default_factory=set)
    backward: list[BackwardOp] | None = None
    losses: set[int] = field(default_factory=set)
    gradients: set[int] = field(default_factory=set)

    @property
    def now(self) -> int:
        """The number of the next event; numbers continue through backward."""
        return len(self.events) + len(self.backward or ())

    def called(self) -> set[str]:
        """The modules that were called, by qualified name."""
        return {event.call.module for event in self.events if isinstance(event, Boundary)}


def peak_bytes(made: Iterable[tuple[Storage, int]], last: int) -> int:
    """The most bytes of some storages that were alive at once."""
    changes: list[tuple[int, int, int]] = []
    for storage, event in made:
        changes.append((event, 1, storage.size_bytes))
        if storage.died is not None and storage.died <= last:  # before the event of that number
            changes.append((storage.died, 0, -storage.size_bytes))
    live = peak = 0
    for _, _, change in sorted(changes):
        live += change
        peak = max(peak, live)
    return peak
