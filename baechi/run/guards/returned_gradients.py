"""Move gradients that a model's own `autograd.Function` returns to where its inputs lie.

Such a function may run layers again in backward (reversible networks do). A functional op (glue) on
their results runs where its largest argument lies. So the gradient may end on another device than the
input that it belongs to, and autograd would go on with it there.
"""

import functools
import weakref
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.backend.transfer import transfer
from baechi.run.model_runtime import ModelRuntime
from baechi.torchlib.autograd_nodes import node_of
from baechi.torchlib.private.autograd import backward_class, replace_backward
from baechi.torchlib.tensors.pytree import tensors_in


def return_home(function: Any, given: tuple[Any, ...], result: Any, runtime: ModelRuntime) -> None:
    """Let a Function's backward run in a step, and move the gradients it returns to its inputs' devices."""
    backend = runtime.backend
    input_devices = [backend.place_of(value) if isinstance(value, torch.Tensor) else "" for value in given]
    if not any(input_devices):
        return
    for tensor in tensors_in(result):
        node = node_of(tensor)
        if isinstance(node, backward_class(function)):
            replace_backward(node, functools.partial(_apply, weakref.ref(node), input_devices, runtime))


def _apply(node: Any, input_devices: list[str], runtime: ModelRuntime, *grads: Any) -> Any:
    runtime.step_until_backward_ends()  # it may combine tensors saved on several devices
    made = type(node()).apply(node(), *grads)
    returned = made if isinstance(made, tuple) else (made,)
    brought = [
        _at(grad, device, runtime.backend) for grad, device in zip(returned, input_devices, strict=False)
    ]
    for grad in tensors_in(brought):
        runtime.backend.leave(grad)  # autograd goes on with it on the stream of its node
    return (*brought, *returned[len(brought) :])


def _at(grad: Any, device: str, backend: AbstractBackend) -> Any:
    if not isinstance(grad, torch.Tensor) or not device or backend.place_of(grad) == device:
        return grad
    if backend.place_of(grad) not in backend.names:  # it may have no device yet
        on_device = device in backend.names
        if not on_device or backend.claim(grad, device):
            return grad
    return transfer(grad, backend, device)
