"""Running the model once under watch: with fake tensors where they can go, else with real ones."""

import inspect
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from baechi.capture.watch.backward import run_backward
from baechi.capture.watch.observe import watching
from baechi.capture.watch.trace import Trace
from baechi.errors import CaptureError, said_by
from baechi.gc_pause import only_new_ones
from baechi.records.inputs import Inputs
from baechi.torchlib.fakes.argument_checks import checks_as_kernels_do
from baechi.torchlib.fakes.at_work import fakes_at_work
from baechi.torchlib.fakes.leaks import clear_caches, clear_leftovers, forget_originals
from baechi.torchlib.modules.arguments import Arguments
from baechi.torchlib.modules.as_found import left_as_found
from baechi.torchlib.modules.on_meta import is_on_meta
from baechi.torchlib.private.fakes import FakeTensorMode
from baechi.torchlib.private.modules import buffer_table, parameter_table
from baechi.torchlib.tensors.pytree import map_tensors, named_tensors, tensors_in

logger = logging.getLogger(__name__)


Kept = dict[str, Arguments] | None


def run_once(model: nn.Module, inputs: Inputs, *, training: bool, arguments: Kept = None) -> Trace:
    """Run the model once and write down what happens.

    Under `FakeTensorMode` nothing is computed and no memory is allocated, so a model on the
    `meta` device will do. A model whose control flow looks at values runs again with real tensors.
    """
    _check_signature(model, inputs)
    try:
        return _run_hooked(model, inputs, training=training, fake=True, arguments=arguments)
    except CaptureError:  # it could not be watched with real tensors either
        raise
    except Exception as refused:  # the model's code may raise anything on a fake tensor
        if is_on_meta(model):
            raise CaptureError(
                f"the model is on the meta device and does not run with fake tensors ({_line(refused)}): "
                "load its weights to capture it with real ones"
            ) from refused
        if any(tensor.is_meta for tensor in tensors_in(inputs.args, inputs.kwargs)):
            raise CaptureError(
                "inputs are on the meta device and the model does not run with fake tensors "
                f"({_line(refused)}): capture it with real inputs"
            ) from refused
        clear_caches()
        logger.info("capturing with real tensors: fake ones cannot go here (%s)", _line(refused))
    try:
        return _run_hooked(model, inputs, training=training, fake=False, arguments=arguments)
    except Exception as error:
        raise CaptureError(
            f"the model does not run with the example inputs {inputs!r}: {_line(error)}"
        ) from error


def _run_hooked(model: nn.Module, inputs: Inputs, *, training: bool, fake: bool, arguments: Kept) -> Trace:
    """Run, watching what autograd saves; without where the model's code allows no such hooks."""
    try:
        return _run(model, inputs, training=training, fake=fake, hooks=True, arguments=arguments)
    except RuntimeError as error:
        if not training or "saved tensor hooks" not in str(error):
            raise
    return _run(model, inputs, training=training, fake=fake, hooks=False, arguments=arguments)


def _run(
    model: nn.Module, inputs: Inputs, *, training: bool, fake: bool, hooks: bool, arguments: Kept
) -> Trace:
    with ExitStack() as stack:
        stack.enter_context(only_new_ones())
        stack.enter_context(left_as_found(model, contents="no parameters"))
        stack.enter_context(torch.set_grad_enabled(training))
        if training != model.training:
            model.train(training)
        mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else None
        if mode is not None:
            stack.callback(forget_originals, mode)
            stack.enter_context(mode)
            stack.enter_context(fakes_at_work())
            stack.enter_context(checks_as_kernels_do())
            stack.enter_context(_meta_weights_faked(model, mode))
        given = (inputs.args, inputs.kwargs)
        stand_ins: list[tuple[torch.Tensor, torch.Tensor]] = []

        home = _home(model)

        def fake_of(tensor: torch.Tensor) -> torch.Tensor:
            stand_ins.append((_stand_in_tensor(tensor, mode, home), tensor))
            return stand_ins[-1][0]

        args, kwargs = map_tensors(fake_of, given)
        with watching(model, training=training, fake=fake, hooks=hooks, arguments=arguments) as watch:
            while stand_ins:
                watch.values.note(*stand_ins.pop())
            watch.note_inputs(_named_inputs(model, args, kwargs))
            result = model(*args, **kwargs)
            watch.note_replaced(model)
            if watch.refusal is not None:
                raise watch.refusal
            if training:
                run_backward(watch, model, (args, kwargs), result)
        del args, kwargs, result
        trace = watch.trace
    if fake:
        torch.clear_autocast_cache()  # it keeps fake casts of weights
        clear_leftovers(watch.survivors)
    return trace


def _home(model: nn.Module) -> torch.device | None:
    """Where all weights lie, and so the batch does while the model is watched; None if there are several."""
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers()) if not tensor.is_meta}
    return devices.pop() if len(devices) == 1 else None


def _stand_in_tensor(
    tensor: torch.Tensor, mode: FakeTensorMode | None, home: torch.device | None
) -> torch.Tensor:
    away = home is not None and tensor.device != home and not tensor.is_meta
    if mode is not None and tensor.is_meta:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, requires_grad=tensor.requires_grad
        )
    if mode is not None and not away:
        return mode.from_tensor(tensor)
    source = tensor.detach() if mode is None else mode.from_tensor(tensor.detach())
    copied = source.to(home) if away else source.clone()
    return copied.requires_grad_(tensor.requires_grad)


@contextmanager
def _meta_weights_faked(model: nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Weights on `meta` become fake ones on the CPU: fake tensors of two devices do not mix."""
    fakes: dict[int, torch.Tensor] = {}
    storages: dict[torch.UntypedStorage, torch.Tensor] = {}
    for module in model.modules():
        for table in (parameter_table(module), buffer_table(module)):
            for name, weight in table.items():
                if weight is None or not weight.is_meta:
                    continue
                if id(weight) not in fakes:
                    fakes[id(weight)] = _fake_of(weight, storages)
                table[name] = fakes[id(weight)]
    yield  # left_as_found, which is around this, puts the weights back


def _fake_of(weight: torch.Tensor, storages: dict[torch.UntypedStorage, torch.Tensor]) -> torch.Tensor:
    storage = weight.untyped_storage()
    if storage not in storages:
        storages[storage] = torch.empty(storage.nbytes(), dtype=torch.uint8)
    flat = storages[storage].view(weight.dtype)
    fake = flat.as_strided(weight.shape, weight.stride(), weight.storage_offset())
    if isinstance(weight, nn.Parameter):
        return nn.Parameter(fake, requires_grad=weight.requires_grad)
    return fake


def _signature(model: nn.Module) -> inspect.Signature | None:
    try:
        return inspect.signature(model.forward)
    except (TypeError, ValueError):  # a forward without a readable signature (script modules)
        return None


def _check_signature(model: nn.Module, inputs: Inputs) -> None:
    signature = _signature(model)
    if signature is None:
        return
    try:
        signature.bind(*inputs.args, **inputs.kwargs)
    except TypeError as error:
        raise CaptureError(
            f"the model does not take the example inputs {inputs!r}: {error}; "
            f"its forward is {type(model).__name__}.forward{signature}"
        ) from error


def _named_inputs(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    signature = _signature(model)
    positional: list[str] = []
    if signature is not None:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [p.name for p in signature.parameters.values() if p.kind in kinds]
    for index, value in enumerate(args):
        yield from named_tensors(positional[index] if index < len(positional) else str(index), value)
    for name, value in kwargs.items():
        yield from named_tensors(name, value)


def _line(error: BaseException) -> str:
    text = said_by(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
