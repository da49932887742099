"""What of torch baechi replaces, and how: places that are put back when they are no longer needed.

    put          ours stands there until `take_back`; putting it twice does nothing
    replaced     ours stands there inside of a `with`

A place that this torch lacks stays empty: what each one is for says what then goes unseen.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.autograd.graph
import torch.utils.checkpoint
from torch.nn.parallel import DistributedDataParallel

from baechi.torchlib.private.fakes import FakeTensor
from baechi.torchlib.private.lookup import named, note_place

_ABSENT: Any = object()
"""The owner inherits the attribute: it has none of its own."""


class Place:
    """An attribute of a class or a module that something of ours may stand in for.

    Args:
        owner: the class or module; None if there is none.
        name: the attribute.

    Attributes:
        exists: whether the owner has it.
        original: what stood there before ours; a class's own `classmethod` or `property` as it is.
    """

    __slots__ = ("_under", "exists", "name", "original", "owner")

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.exists = owner is not None and hasattr(owner, name)
        self.original: Any = self.now() if self.exists else None
        self._under: list[tuple[Any, Any]] = []  # what each of ours was put on: as stored, and as read

    def now(self) -> Any:
        """What stands there now."""
        own = vars(self.owner).get(self.name, _ABSENT)
        return getattr(self.owner, self.name) if own is _ABSENT else own

    def put(self, ours: Any) -> None:
        """Replace what is there."""
        own = vars(self.owner).get(self.name, _ABSENT) if self.exists else ours
        if own is not ours:
            self._under.append((own, self.original))
            self.original = getattr(self.owner, self.name) if own is _ABSENT else own
            setattr(self.owner, self.name, ours)

    def take_back(self) -> None:
        """Restore what was there before what was put last. It may be interrupted, and done again."""
        if self._under:
            before, self.original = self._under[-1]
            self._restore(before)
            self._under.pop()

    @contextmanager
    def replaced(self, ours: Any) -> Iterator[None]:
        """While this is open, something of ours stands there."""
        if not self.exists:
            yield
            return
        before = vars(self.owner).get(self.name, _ABSENT)
        setattr(self.owner, self.name, ours)
        try:
            yield
        finally:
            self._restore(before)

    def _restore(self, before: Any) -> None:
        if before is not _ABSENT:
            setattr(self.owner, self.name, before)
        elif self.name in vars(self.owner):  # it may be gone already, if this was interrupted
            delattr(self.owner, self.name)


_places: list[Place] = []


def _place(owner: Any, name: str, purpose: str) -> Place:
    note_place(owner, name, purpose)
    _places.append(Place(owner, name))
    return _places[-1]


def replaceable() -> list[str]:
    """What of torch baechi may replace while it runs, by name."""
    there = [one for one in _places if one.exists]
    return [f"{getattr(one.owner, '__qualname__', None) or one.owner.__name__}.{one.name}" for one in there]


_vmap: Any = named("torch._functorch.vmap", "launch what torch.vmap is given", None)
_transforms: Any = named("torch._functorch.eager_transforms", "launch what torch.func.grad is given", None)
_checkpoint: Any = torch.utils.checkpoint

FUNCTION_APPLY = _place(torch.autograd.Function, "apply", "see calls of an `autograd.Function`")
"""No mode sees it. It is public, so that every torch has it."""

VMAP_BATCH = _place(_vmap, "_add_batch_dim", "launch what torch.vmap is given")
VMAP_INPUTS = _place(_vmap, "_process_batched_inputs", "launch what torch.vmap is given before it begins")
GRAD_INPUTS = _place(_transforms, "_wrap_for_grad", "launch what torch.func.grad is given")
"""No mode sees these. Without them a transform is given deferred values, and raises."""

_GENERATOR = "_checkpoint_without_reentrant_generator"
_INSIDE = f"{_GENERATOR}_impl"  # in torch 2.15 `checkpoint` calls this; both are given the region first
CHECKPOINTED = _place(
    _checkpoint,
    _INSIDE if hasattr(_checkpoint, _INSIDE) else _GENERATOR,
    "run checkpointed regions in a step in backward",
)
CHECKPOINT_STATES = _place(_checkpoint, "get_device_states", "keep the generators of all devices")
CHECKPOINT_DEVICE = _place(_checkpoint, "_infer_device_type", "keep the generators of our type of device")
FORK_RNG = _place(torch.random, "fork_rng", "run one checkpointed region after the other in backward")
"""Without the first, a region is given deferred values, and raises; without the others, a region on several
devices may draw other numbers when it runs again."""

TENSOR_DEVICE = _place(torch.Tensor, "device", "let tensors say which emulated device they lie on")
TENSOR_METHODS = tuple(
    _place(torch.Tensor, name, "move tensors between emulated devices")
    for name in ("to", "cpu", "tolist", "numpy", "new_tensor")
)
FACTORIES = tuple(
    _place(torch, name, "make tensors on emulated devices") for name in ("tensor", "as_tensor", "asarray")
)
_factories: Any = named(
    "torch.utils._device._device_constructors",
    "keep torch's own functions for `with torch.device(...)`",
    tuple,
)
_factories()  # torch notes what stands in these places when it asks first: it must be its own
STORAGE_CLONE = _place(
    named("torch.storage._StorageBase", "let deep copies lie where the originals do", None),
    "clone",
    "let deep copies lie where the originals do",
)
THREAD_RUN = _place(threading.Thread, "run", "watch threads that start while a cluster is emulated")
"""Python's own: dispatch modes belong to threads."""

MODULE_CALL = _place(torch.nn.Module, "__call__", "charge an emulated host for calls of modules")
ZERO_GRAD = tuple(
    _place(owner, "zero_grad", "charge an emulated host for gradients that are dropped")
    for owner in (torch.nn.Module, torch.optim.Optimizer)
)

PARALLEL_MAKE = _place(DistributedDataParallel, "__init__", "refuse emulated devices")
PARALLEL_CALL = _place(DistributedDataParallel, "forward", "refuse emulated devices")

TENSOR_SET = _place(torch.Tensor, "set_", "bring what is set to where a tensor lies")
"""No mode sees it. Without it torch refuses what lies on another device."""

OPTIMIZER_SAVES = _place(
    torch.optim.Optimizer, "state_dict", "refuse to write an optimizer's states of some processes alone"
)
OPTIMIZER_LOADS = _place(
    torch.optim.Optimizer,
    "_process_value_according_to_param_policy",
    "cut optimizer state of sharded weights as it is loaded",
)
"""Without it, such state goes whole to the device of the first shard, and is cut before the next step."""

UPDATES = tuple(
    _place(
        named(f"torch.optim.{module}", f"let {name} update sharded weights at the cost of plain ones", None),
        name,
        "update sharded weights at the cost of plain ones",
    )
    for module, name in [
        ("adam", "adam"),
        ("adamw", "adamw"),
        ("sgd", "sgd"),
        ("rmsprop", "rmsprop"),
        ("adagrad", "adagrad"),
        ("nadam", "nadam"),
        ("radam", "radam"),
        ("adamax", "adamax"),
        ("adadelta", "adadelta"),
        ("asgd", "asgd"),
    ]
)
"""The functions with which torch's elementwise optimizers update lists of weights. They are public; without
one, its optimizer updates sharded weights operator by operator."""

MODULE_SET = _place(torch.nn.Module, "__setattr__", "see which attributes a microbatch writes")
MODULE_DELETE = _place(torch.nn.Module, "__delattr__", "see which attributes a microbatch deletes")
MODULE_BUFFER = _place(torch.nn.Module, "register_buffer", "see which buffers a microbatch makes")
"""They are public, so that every torch has them."""

MODULE_COMPILE = _place(torch.nn.Module, "compile", "compile parts of a model that is distributed already")
"""It is public, so that every torch has it."""

BACKWARD_CONTEXT = Place(torch.autograd.graph, "contextvars")
"""Where all threads of a backward enter one context, code that torch compiled may fail on several devices.

A torch without it has no such context, and lacks nothing.
"""

COMMON_DEVICE = _place(FakeTensor, "_find_common_device", "capture models that lie on several devices")
FAKE_DEVICE = _place(FakeTensor, "device", "see which fake tensor is asked for its device")
FAKE_DEEPCOPY = _place(FakeTensor, "__deepcopy__", "copy fake tensors, which have no memory, deeply")
FAKE_REDUCE = _place(
    FakeTensor, "__reduce_ex__", "copy fake tensors, which have no memory, and refuse to pickle them"
)


def transformers_asks_fakes() -> Place:
    """Where Transformers asks whether a tensor is fake; a place that is none while it is not imported.

    Without it, Transformers makes masks where it cannot ask whether they matter.
    """
    return Place(sys.modules.get("transformers.utils.import_utils"), "is_fake_tensor")
