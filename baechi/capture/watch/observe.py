"""Watching a model run: replaced `forward`s see module calls, two modes see functions and operations.

model(inputs)
  └─ `_called`, for each forward      -> Boundary(enter), Boundary(exit)
       └─ TorchFunctionMode           -> which torch function the code called (glue's name)
            └─ autograd
                 └─ TorchDispatchMode -> Op: what was read, written, made; flops and bytes
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from baechi.capture.watch.backward import note_backward
from baechi.capture.watch.functions import LIST, Functions, device_reads
from baechi.capture.watch.trace import Boundary, Call, Function, HostWait, Op, Origin, Use
from baechi.capture.watch.values import told_to_libraries
from baechi.capture.watch.watched_run import Watch
from baechi.torchlib.dynamo import CompilerAside
from baechi.torchlib.fakes.results import as_its_kernel
from baechi.torchlib.modules.arguments import Arguments
from baechi.torchlib.modules.fast_paths import FUSED
from baechi.torchlib.modules.intercept import (
    forward_restored,
    original_forward,
    replace_forward,
    restore_forward,
)
from baechi.torchlib.operators.facts import (
    Facts,
    bytes_of,
    draws,
    facts_of,
    flat,
    flops_of,
    host_waits,
    is_kernel,
    is_uncounted,
    may_lie_on_host,
    writes_of,
)
from baechi.torchlib.private.autograd import next_sequence_number, views_replayed
from baechi.torchlib.private.fakes import FakeTensor
from baechi.torchlib.private.modes import TorchDispatchMode, without_torch_function
from baechi.torchlib.private.operators import HigherOrderOperator
from baechi.torchlib.private.patches import FUNCTION_APPLY

_WATCH = "_baechi_watch"
_DEVICE = torch.ops.prim.device.default


@contextmanager
def watching(
    model: nn.Module,
    *,
    training: bool,
    fake: bool = False,
    hooks: bool = True,
    arguments: dict[str, Arguments] | None = None,
) -> Iterator[Watch]:
    """Watch what runs inside; everything is taken off again afterwards."""
    watch = Watch(model, training=training, fake=fake, arguments=arguments)
    with ExitStack() as stack:
        stack.callback(watch.forget)
        stack.callback(watch.put_weights_back)
        stack.enter_context(CompilerAside())
        stack.enter_context(views_replayed())
        for module in model.modules():
            # a module that another model shares (an activation) may have a replaced forward already
            stack.enter_context(forward_restored(module))
            module.__dict__[_WATCH] = watch
            stack.callback(module.__dict__.pop, _WATCH, None)
            replace_forward(module, _called)
            stack.callback(restore_forward, module)
        if training and hooks:
            watch.saver = _saver(watch)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(watch.saver, lambda kept: kept))
        stack.enter_context(_Operations(watch))
        stack.enter_context(Functions(watch))
        stack.enter_context(_custom_functions(watch))
        stack.enter_context(device_reads(watch))
        stack.enter_context(told_to_libraries(watch.values))
        yield watch
    if training and not hooks:
        for storage in watch.trace.storages:
            storage.saved |= storage.requires_grad


def _called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Replace a module's forward: note the call's beginning and end around it."""
    watch: Watch = module.__dict__[_WATCH]
    watch.note_call(module)
    if watch.trace.backward is not None:  # a checkpointed region runs again
        return original_forward(module)(*args, **kwargs)
    name = watch.names[id(module)]
    turn = watch.turns.get(name, 0)
    watch.turns[name] = turn + 1
    outer, function = watch.call, watch.function
    call = Call(name, type(module).__name__, turn, outer, _is_leaf(module))
    ancestor = outer
    while ancestor is not None:
        ancestor.inside.add(name)
        ancestor = ancestor.parent
    watch.trace.events.append(Boundary("enter", call, watch.uses(args, kwargs)))
    watch.note_arguments(call, args, kwargs)
    watch.call, watch.function = call, None
    try:
        # the runtime's function mode is off in layers, and only then torch takes its fused path
        with without_torch_function() if isinstance(module, FUSED) else nullcontext():
            result = original_forward(module)(*args, **kwargs)
        alone = isinstance(result, torch.Tensor)
        watch.trace.events.append(Boundary("exit", call, watch.uses(result), alone))
        return result
    finally:
        # an autograd.Function is one node only up to a module call inside it: code after that is noted anew
        whole = function is not None and function.whole
        watch.call, watch.function = outer, None if whole else function


def _is_leaf(module: nn.Module) -> bool:
    """Whether nothing inside could be a layer: no children but the parametrizations of its weights."""
    return all(name == "parametrizations" for name, _ in module.named_children())


def _saver(watch: Watch) -> Any:
    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = watch.storage_of(tensor)
        storage.saved = True
        events = watch.trace.events
        # An input is saved while the operation runs, an output after its Op was noted. Only in the second
        # case has the last Op the newest sequence number: then it is the saver, else the next event is
        last = events[-1] if events else None
        over = isinstance(last, Op) and last.sequence == next_sequence_number()
        storage.savers.add(len(events) - over)
        watch.saving = True  # what follows is ours, not the model's
        try:
            return tensor.detach()  # unpacked, an output would refer to its own node: a cycle never freed
        finally:
            watch.saving = False

    return save


@contextmanager
def _custom_functions(watch: Watch) -> Iterator[None]:
    """Notes calls of `autograd.Function.apply`, which no mode sees."""
    original = FUNCTION_APPLY.now()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        inside = watch.function is not None or watch.trace.backward is not None
        if inside:
            return original.__get__(None, cls)(*args, **kwargs)
        if cls is CheckpointFunction:  # inside it runs the model's code
            with watch.region():
                return original.__get__(None, cls)(*args, **kwargs)
        watch.function = Function(cls.__name__, watch.uses(args, kwargs), whole=True)
        try:
            return original.__get__(None, cls)(*args, **kwargs)
        finally:
            watch.function = None

    with FUNCTION_APPLY.replaced(classmethod(apply)):
        yield


class _Operations(TorchDispatchMode):
    """Notes what each operation reads, writes and makes."""

    supports_higher_order_operators = True
    """Without this torch raises its own error before ours."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrderOperator):
            self.watch.refuse(func.name())
        if func is _DEVICE and type(args[0]) is FakeTensor:  # autograd asks it at every step
            return args[0].fake_device
        kwargs = kwargs or {}
        if self.watch.trace.backward is not None:
            return note_backward(self.watch, func, args, kwargs)
        # outside of any module call there is nothing to attribute the operation to
        if func.namespace == "prim" or self.watch.call is None:
            return self.watch.values.run(func, args, kwargs, [])
        watch = self.watch
        if watch.function is not None and draws(func, args, kwargs):
            watch.function.bound = True
        facts = facts_of(func)
        writing = list(writes_of(facts, args, kwargs))
        for tensor in writing:
            watch.keep_weight(tensor)
        given = flat([*args, *kwargs.values()]) if not facts.rule.fresh else []  # what it is given is its own
        if not watch.saving:
            watch.note_operator(func, facts, given)
        reads = tuple(watch.use(tensor) for tensor in given)
        result = watch.values.run(func, args, kwargs, writing)
        result = as_its_kernel(func, args, kwargs, result)
        made = flat([result])
        if facts.aliases and given:  # a view: no new memory, no kernel, so no event
            for tensor in made:
                watch.alias(tensor, reads[0].storage)
            return result
        written = tuple(watch.use(tensor) for tensor in writing)
        if facts.returns_written:
            for tensor, use in zip(made, written, strict=False):
                watch.alias(tensor, use.storage)
        known = {id(use.storage) for use in (*reads, *written)}
        makes = tuple(use for use in map(watch.use, made) if id(use.storage) not in known)
        if not facts.rule.fresh:  # what `torch.tensor` makes lies on the host first, wherever it goes
            watch.note_origin(reads, (*makes, *written))
        waits, kernel = host_waits(facts, args), is_kernel(func, args, kwargs)
        if makes or written or (kernel and result is None):  # a check makes nothing, and takes its time
            work = flops_of(func, args, kwargs, result), kernel
            there = _where_it_runs(facts, args, given, reads)
            called = args, kwargs
            self._note(func, called, (there, written, makes), (given, made or writing), work)
        if waits and not (watch.function is not None and watch.function.name == LIST):
            kernels = 0 if makes else int(kernel)
            watch.trace.events.append(HostWait(makes or reads, kernels))
        return result

    def _note(
        self,
        func: Any,
        called: tuple[Any, Any],
        uses: tuple[Any, Any, Any],
        tensors: tuple[Any, Any],
        work: tuple[int, bool],
    ) -> None:
        watch, (reads, writes, makes), (given, made), (flops, kernel) = self.watch, uses, tensors, work
        assert watch.call is not None
        if is_uncounted(func):
            watch.trace.uncounted.add(str(func.overloadpacket))
        floating = [tensor for tensor in (*given, *made) if tensor.is_floating_point()]
        dtype = str(floating[0].dtype if floating else torch.float32).removeprefix("torch.")
        watch.trace.events.append(
            Op(
                name=func.overloadpacket.__name__,
                call=watch.call,
                function=watch.function,
                reads=reads,
                writes=writes,
                makes=makes,
                flops=flops,
                moved_bytes=bytes_of(facts_of(func), given, made),
                dtype=dtype,
                kernel=kernel,
                sequence=next_sequence_number(),
                region=watch.checkpointed(),
                draws=draws(func, *called),
                host_work=watch.host_work(),
            )
        )


def _where_it_runs(
    facts: Facts, args: Any, given: list[torch.Tensor], reads: tuple[Use, ...]
) -> tuple[Use, ...]:
    """What an operation reads where it runs: indices that the code made stay on the host."""
    if not facts.host_arguments or all(use.storage.origin is Origin.NOTHING for use in reads):
        return reads
    pairs = zip(given, reads, strict=True)
    stays = [use.storage.origin is Origin.NOTHING and may_lie_on_host(facts, args, one) for one, use in pairs]
    return tuple([use for use, stay in zip(reads, stays, strict=True) if not stay])
