"""The state of one watched run: the trace so far, and where in the model's code we are.

Tensors are known by their storage: the record hangs on the `UntypedStorage` object.
"""

import itertools
import logging
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from baechi.capture.watch.devices import Devices
from baechi.capture.watch.trace import Call, Function, Origin, Storage, Trace, Use
from baechi.capture.watch.values import Values
from baechi.errors import CaptureError
from baechi.records.device import HostWork
from baechi.torchlib.host_work import BackwardNodes, work_of_call, work_of_operator
from baechi.torchlib.modules.arguments import Arguments
from baechi.torchlib.operators.facts import Facts
from baechi.torchlib.private.autograd import top_saved_hooks
from baechi.torchlib.private.fakes import FakeTensor
from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function
from baechi.torchlib.private.transforms import current_transform
from baechi.torchlib.tensors.layout import sent_and_held_bytes
from baechi.torchlib.tensors.pytree import tensors_in
from baechi.torchlib.tensors.spans import held_bytes
from baechi.torchlib.tensors.storage import storage_bytes, storage_object

logger = logging.getLogger(__name__)

_RECORD = "_baechi_record"
_NUMBER = "_baechi_number"


class Watch:
    """The state of one capture: the trace so far, and where in the model's code we are.

    Args:
        model: the model.
        training: whether it runs in training mode, with gradients.
        fake: whether it runs with fake tensors.
        arguments: filled with what each module was called with, by the name of its node, if it is given.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        training: bool,
        fake: bool = False,
        arguments: dict[str, Arguments] | None = None,
    ) -> None:
        self._arguments = arguments
        self.trace = Trace(training)
        self.refusal: CaptureError | None = None
        self.names = {id(module): name for name, module in model.named_modules()}
        self.turns: dict[str, int] = {}
        self.call: Call | None = None
        self.function: Function | None = None
        self.saver: Any = None
        """What notes the tensors that autograd saves."""
        self.saving = False
        self.done: tuple[int, tuple[tuple[Any, int], ...]] = (-2, ())
        """In backward, the node that was done last; of each gradient that it made, shape and next node."""
        self._host_work = Counter[HostWork]()
        self._nodes = BackwardNodes()
        self._regions = 0
        self._checkpoint: weakref.ref[Any] | None = None
        self._checkpoints = 0
        self.devices = Devices()
        self.values = Values(fake=fake)
        self._numbers = itertools.count(1)
        self.marked: list[tuple[weakref.ref[Any], Storage]] = []
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._note_weights(model)

    def _note_weights(self, model: nn.Module) -> None:
        self.trace.modules = {name: type(module).__name__ for name, module in model.named_modules()}
        weights: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
        weights.update(model.named_buffers(remove_duplicate=False))
        for name, tensor in weights.items():
            storage = self.storage_of(tensor)
            storage.weight = storage.weight or name
            storage.origin = Origin.WEIGHTS
            storage.parameter |= isinstance(tensor, nn.Parameter)
            storage.trained |= tensor.requires_grad
            self.trace.weights[name] = storage
        sizes = held_bytes(weights.values())
        for weight in weights.values():
            self.storage_of(weight).size_bytes = sizes[id(storage_object(weight))]

    def note_call(self, module: nn.Module) -> None:
        """Count a call of a module, as the emulated cluster does."""
        self._host_work[work_of_call(module)] += 1

    def note_operator(self, func: Any, facts: Facts, given: Iterable[torch.Tensor]) -> None:
        """Count what torch does on the host for an operator, as the emulated cluster does."""
        if self.trace.backward is not None:
            self._host_work["node"] += self._nodes.enters()
            if facts.rule.becomes_grad:  # also of what the hooks kept; weights' gradients count apart
                return
        elif torch.is_grad_enabled() and any([tensor.requires_grad for tensor in given]):
            self._host_work["recorded"] += 1
        self._host_work[work_of_operator(func, facts)] += 1

    def host_work(self) -> Mapping[HostWork, int]:
        """What torch did on the host since it was asked before."""
        done, self._host_work = self._host_work, Counter()
        return dict(done)

    def note_inputs(self, named: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Say which tensors come in from outside."""
        for path, tensor in named:
            storage = self.storage_of(tensor)
            if storage.weight is None and storage.input is None:
                storage.input = path
                storage.origin = Origin.INPUTS

    def note_replaced(self, model: nn.Module) -> None:
        """Note the buffers that the model's code assigned anew, when forward is over."""
        for name, tensor in model.named_buffers(remove_duplicate=False):
            before, now = self.trace.weights.get(name), self.storage_of(tensor)
            if before is not None and now is not before:
                self.trace.replaced[name] = now

    def note_origin(self, reads: Iterable[Use], makes: Iterable[Use]) -> None:
        """Note what memory was computed from."""
        origins = [use.storage.origin for use in reads]
        if self.function is not None and self.function.beside is not None:
            origins.append(self.function.beside.origin)
        origin = max(origins, default=Origin.NOTHING)
        for use in makes:
            use.storage.origin = max(use.storage.origin, origin)

    def storage_of(self, tensor: torch.Tensor) -> Storage:
        """The record of a tensor's storage, made when first seen."""
        record = self.record_of(tensor)
        if record is None:
            record = Storage(len(self.trace.storages), storage_bytes(tensor))
            self.trace.storages.append(record)
            self.attach(storage_object(tensor), record)
        record.requires_grad |= tensor.requires_grad
        return record

    def record_of(self, tensor: torch.Tensor) -> Storage | None:
        """The record of a tensor's storage; None if it was not seen yet."""
        record: Storage | None = getattr(storage_object(tensor), _RECORD, None)
        return record

    def attach(self, holder: Any, record: Storage) -> None:
        """Attach a record to a storage object, and note when its last tensor releases it."""
        setattr(holder, _RECORD, record)
        self.marked.append((weakref.ref(holder), record))
        weakref.finalize(holder, self._died, record).atexit = False

    def alias(self, view: torch.Tensor, storage: Storage) -> None:
        """A view, or what was written, has its base's record: of a weight it is another object while
        tensors are fake."""
        holder = storage_object(view)
        if getattr(holder, _RECORD, None) is None:
            self.attach(holder, storage)

    def _died(self, record: Storage) -> None:
        record.died = self.trace.now

    def use(self, tensor: torch.Tensor) -> Use:
        """A tensor as it is used now."""
        with without_torch_function():  # these questions are ours, not the model's
            view: tuple[object, ...] = ()
            if tensor.layout == torch.strided and not tensor.is_nested:
                view = (tensor.storage_offset(), *tensor.shape, *tensor.stride())
            storage = self.storage_of(tensor)
            return Use(
                storage,
                view,
                *sent_and_held_bytes(tensor),
                tensor.requires_grad,
                self._number_of(tensor, storage),
            )

    def _number_of(self, tensor: torch.Tensor, storage: Storage) -> int:
        """A number for the tensor object; weights get none, since a capture leaves no attribute on them."""
        if storage.weight is not None:
            return 0
        number: int | None = vars(tensor).get(_NUMBER)
        if number is None:
            number = vars(tensor)[_NUMBER] = next(self._numbers)
            storage.names += 1
            weakref.finalize(tensor, self._forgotten, storage, number).atexit = False
        return number

    def _forgotten(self, record: Storage, number: int) -> None:
        self.trace.gone[number] = self.trace.now
        record.names -= 1
        if not record.names:
            record.forgotten = self.trace.now

    def uses(self, *values: Any) -> tuple[Use, ...]:
        """Every tensor in the values."""
        return tuple(self.use(tensor) for tensor in tensors_in(*values))

    @contextmanager
    def region(self) -> Iterator[None]:
        """Within this context, backward runs the model's code again: torch's reentrant checkpointing."""
        self._regions += 1
        try:
            yield
        finally:
            self._regions -= 1

    def checkpointed(self) -> int:
        """The number of the region, of those that torch runs again without reentry; 0 outside of them."""
        top = top_saved_hooks(True)
        if top is None or getattr(top[0], "__module__", "") != checkpoint.__module__:
            return 0
        if self._checkpoint is None or self._checkpoint() is not top[0]:
            self._checkpoint = weakref.ref(top[0])
            self._checkpoints += 1
        return self._checkpoints

    def in_region(self) -> bool:
        """Whether backward may run the code again, or a transform of `torch.func` runs it."""
        top = top_saved_hooks(True)
        foreign = top is not None and top[0] is not self.saver
        return foreign or self._regions > 0 or current_transform() is not None

    def note_arguments(self, call: Call, args: Any, kwargs: Any) -> None:
        """Write down what a module is called with, if arguments are collected."""
        if self._arguments is not None:
            try:
                self._arguments[call.node] = Arguments.of(args, kwargs)
            except TypeError as error:  # an object that cannot be copied
                logger.debug("what %s is called with cannot be kept: %s", call.node, error)

    def refuse(self, operator: str) -> NoReturn:
        """The model calls an operator that is given functions, whose work cannot be watched."""
        self.refusal = CaptureError(
            f"the model calls the operator {operator}, which is given functions, and what these do is not "
            "seen. Choose another implementation: of attention, torch's scaled_dot_product_attention"
        )
        raise self.refusal

    def keep_weight(self, tensor: torch.Tensor) -> None:
        """Keep what is in a weight that is about to be written.

        Also under fake tensors: torch runs operations on real tensors alone for real.
        """
        storage = self.storage_of(tensor)
        if storage.weight is not None and storage.index not in self.kept and type(tensor) is not FakeTensor:
            with without_dispatch_modes():
                memory = tensor.data
                self.kept[storage.index] = (memory, memory.clone())

    def put_weights_back(self) -> None:
        """Put back what was in the weights that the run wrote."""
        with without_dispatch_modes():
            for memory, content in self.kept.values():
                if not torch.equal(memory, content):
                    memory.copy_(content)

    def survivors(self) -> int:
        """How many storages that the run made are still alive; the model's weights do not count."""
        weights = {id(record) for record in self.trace.weights.values()}
        return sum(ref() is not None and id(record) not in weights for ref, record in self.marked)

    def forget(self) -> None:
        """Take the records off storages that live on (the model's)."""
        for reference, _ in self.marked:
            holder = reference()
            if holder is not None:
                vars(holder).pop(_RECORD, None)
