"""A transfer: a tensor goes from one place to another, and its gradient comes back.

    source   ..[producer]--e1                  tx and rx run beside compute; every arrow is a wait
                             \\                 that is asked for, none comes by itself
    tx       ................`[send]
    rx       ................[receive]--e2
                                          \\
    target   .............................`[consumer]..

Held: the source until tx is past it, the copy until compute is past it; the allocators of both ends
are told (`use`), so that neither memory is handed out again before.
"""

from typing import Any

import torch

from baechi.backend.abstract import AbstractBackend
from baechi.backend.marks import mark_of


class _Transfer(torch.autograd.Function):
    """Identity in value: only the place changes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: torch.Tensor, backend: AbstractBackend, target: str, beside: bool) -> torch.Tensor:
        return _go(tensor, backend, target, beside=beside)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        tensor, ctx.backend, _, ctx.beside = inputs
        ctx.set_materialize_grads(False)
        ctx.source = ctx.backend.place_of(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None, None]:
        grad = grads[0]
        if grad is None or ctx.backend.place_of(grad) == ctx.source:
            return grad, None, None, None
        return transfer(grad, ctx.backend, ctx.source, beside=ctx.beside), None, None, None


def transfer(
    tensor: torch.Tensor, backend: AbstractBackend, target: str, *, beside: bool = True
) -> torch.Tensor:
    """Copy a tensor to a place; autograd carries its gradient back to where the tensor lies.

    Args:
        tensor: any tensor.
        backend: the devices.
        target: a device's name, or another place that the backend knows.
        beside: on streams of its own, beside computing; else on the streams that compute, as
            `Tensor.to` does.

    Returns:
        A copy with the same values and layout, differentiable (twice, too) if the tensor is.
    """
    # what a functorch tensor wraps may require a gradient though the wrapper says no
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    if torch.is_grad_enabled() and (tensor.requires_grad or wrapped):
        copied: torch.Tensor = _Transfer.apply(tensor, backend, target, beside)  # type: ignore[no-untyped-call]
        return copied
    return _go(tensor, backend, target, beside=beside)


def _go(tensor: torch.Tensor, backend: AbstractBackend, target: str, *, beside: bool) -> torch.Tensor:
    if beside:
        return send(tensor, backend, target)
    streams = backend.compute_stream(backend.place_of(tensor)), backend.compute_stream(target)
    return backend.copy(tensor, target, streams)


def send(tensor: torch.Tensor, backend: AbstractBackend, target: str) -> torch.Tensor:
    """Copy a tensor to a place beside computing, outside autograd.

    Args:
        tensor: any tensor.
        backend: the devices.
        target: where it goes.

    Returns:
        The copy; what computes on the target from now on may use it.
    """
    source = backend.place_of(tensor)
    tx, rx = backend.transfer_streams(source, target)
    producer, consumer = backend.compute_stream(source), backend.compute_stream(target)
    backend.wait(tx, backend.record(producer))
    copied = backend.copy(tensor, target, (tx, rx))
    backend.use(tensor, tx)
    received = backend.record(rx)
    backend.wait(consumer, received)
    backend.use(copied, consumer)
    mark = mark_of(tensor)
    if mark is not None:
        mark.sent[tx] = backend.record(tx)
    return copied


def wait_for_readers(tensor: torch.Tensor, backend: AbstractBackend) -> None:
    """Let what computes from now on where a tensor lies come after the transfers that read it.

    Args:
        tensor: a tensor that is about to be written in place.
        backend: the devices.
    """
    mark = mark_of(tensor)
    if mark is not None and mark.sent:
        stream = backend.compute_stream(backend.place_of(tensor))
        for event in mark.sent.values():
            backend.wait(stream, event)
        mark.sent.clear()
