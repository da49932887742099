"""A transfer: a tensor goes from one place to another, and its gradient comes back.

    source   ..[producer]--e1                  source, target: the streams that compute there
                             \\                 tx, rx: the streams that send and receive, beside these
    tx       ................`[send]           e1, e2: events; each slanted line is a wait for one
    rx       ................[receive]--e2
                                          \\
    target   .............................`[consumer]..

For autograd a transfer is two nodes. `_Depart` is made right after the producer, `_Arrive` right before the
first consumer, and backward runs them at these points in reverse. The gradient leaves as soon as the
consumers have made it, and only the producer's backward waits for it. (With a single node, the send or
the wait would block other work.)

A token connects the two nodes: a tensor on the source with the shape of the copy and the memory of one
element. Autograd needs it for two reasons. It runs a node in the thread of the device of the
node's output. And it accepts a gradient only on the device of the matching input. The copy itself is
passed outside autograd.

    forward   producer ──▶ _Depart ──token, on the source──▶ _Arrive ──copy, on the target──▶ consumer
    backward  producer ◀── _Depart ◀──sent, on the source─── _Arrive ◀──gradient, on the target─ consumer
                           (the source's thread)             (the target's thread)

Memory stays allocated until its last reader is done: that of the tensor until tx has read it, that of the
copy until the consumers have. `AbstractBackend.use` (torch's `record_stream`) tells the allocators of both
devices.
"""

from typing import Any

import torch
from torch.autograd import forward_ad

from baechi.backend.abstract import AbstractBackend
from baechi.backend.sends import note_sent
from baechi.backend.way import Departed, Way
from baechi.records.device import HostWork
from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function
from baechi.torchlib.private.tensors import TensorBase
from baechi.torchlib.private.transforms import (
    as_batch,
    current_transform,
    forward_ad_level,
    is_batch,
    is_wrapped,
    rebatched,
    without_transforms,
)
from baechi.torchlib.tensors.references import is_last_reference


def depart(
    tensor: torch.Tensor, backend: AbstractBackend, target: str, ready: Any = None, source: str | None = None
) -> tuple[torch.Tensor, Departed]:
    """Send a tensor to a place, on streams beside those that compute. Only `arrive` may use the copy."""
    source = source or backend.place_of(tensor)
    way = Way(backend, source, target, backend.is_bare(source, target))
    recorded = torch.is_grad_enabled() and tensor.requires_grad
    if way.bare and current_transform() is None:
        copied = backend.copy(tensor, target, (None, None))
        return copied, Departed(way, _departed(tensor, way) if recorded else None)
    if not recorded:
        return send(tensor, way, "transfer", ready), Departed(way)
    # the tensor is not wrapped, so a torch.func transform around this call treats it as a constant
    with without_transforms(), backend.at(way.source):
        copied = send(tensor, way, "gradient_transfer", ready)
        return copied, Departed(way, _departed(tensor, way))


def arrive(copied: torch.Tensor, departed: Departed) -> torch.Tensor:
    """Let work that is issued at the target from now on use the copy."""
    way, token = departed.way, departed.token
    if not way.bare:
        receive(copied, way.backend, way.target, way.arrived)
    if token is None or not torch.is_grad_enabled():
        return copied
    if way.bare and current_transform() is None:
        arrived: torch.Tensor = _arrived(token, [copied], way)
        return arrived
    with without_transforms(), way.backend.at(way.target):
        arrived = _arrived(token, [copied], way)
    return arrived


def transfer(
    tensor: torch.Tensor, backend: AbstractBackend, target: str, *, beside: bool = True
) -> torch.Tensor:
    """Copy a tensor to a place; autograd carries its gradient back to where the tensor lies."""
    batch = as_batch(tensor) if is_batch(tensor) else None
    if batch is not None:  # of gradients: what is behind it travels
        return rebatched(transfer(batch[0], backend, target, beside=beside), batch[1])
    if forward_ad_level() >= 0 and _is_dual(tensor):
        primal, tangent = forward_ad.unpack_dual(tensor)
        primal, tangent = (transfer(one, backend, target, beside=beside) for one in (primal, tangent))
        dual: torch.Tensor = forward_ad.make_dual(primal, tangent)
        return dual
    if beside and takes_two_nodes(tensor):
        return arrive(*depart(tensor, backend, target))
    # the inner tensor of a functorch wrapper may need a derivative, though the wrapper does not say so
    wrapped = is_wrapped(tensor)
    if wrapped or (torch.is_grad_enabled() and tensor.requires_grad):
        copied: torch.Tensor = _Transfer.apply(tensor, backend, target, beside)  # type: ignore[no-untyped-call]
        return copied
    return _copy_to(tensor, backend, target, beside=beside)


def takes_two_nodes(tensor: torch.Tensor) -> bool:
    """Whether autograd can record a tensor's transfer as two nodes, which `depart` and `arrive` need.

    Duals (of forward-mode differentiation), functorch's wrappers, batches of gradients and sparse tensors
    take one.
    """
    if tensor.layout is not torch.strided or is_wrapped(tensor) or is_batch(tensor):
        return False
    return forward_ad_level() < 0 or not _is_dual(tensor)


def _is_dual(tensor: torch.Tensor) -> bool:
    """Whether a tensor carries a tangent (forward-mode differentiation, but not that of functorch)."""
    if is_wrapped(tensor):
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None


def send(tensor: torch.Tensor, way: Way, what: HostWork, ready: Any = None) -> torch.Tensor:
    """Send a tensor, and note that a later write to it must wait until tx has read it.

    A gradient gets no such note: `Way.held` keeps autograd from writing it. (The note is an attribute of the
    storage, and autograd never again adds in place to a tensor whose storage Python has looked at.)
    """
    backend, gradient = way.backend, what == "backward_node"
    source = way.source
    backend.spend(what, way.target if source == backend.host else source)
    tx, rx = backend.transfer_streams(source, way.target)
    if tx is None and rx is None:  # no device has a stream
        return backend.copy(tensor, way.target, (tx, rx), gradient=gradient)
    # tx reads after the producer wrote
    backend.wait(tx, backend.record(backend.compute_stream(source)) if ready is None else ready)
    copied = backend.copy(tensor, way.target, (tx, rx), gradient=gradient)
    backend.use(tensor, tx)
    way.arrived = backend.record(rx)
    way.left = backend.record(tx)
    if gradient:
        return copied
    if tx is not None:
        note_sent(tensor, backend, source, tx, way.left)
    elif rx is not None and backend.reads_later(tensor):  # pinned host memory: rx reads it later
        note_sent(tensor, backend, source, rx, way.arrived)
    return copied


def receive(copied: torch.Tensor, backend: AbstractBackend, place: str, arrived: Any) -> None:
    """Let the compute stream of a place wait for a copy that was sent there."""
    if arrived is None:
        return
    consumer = backend.compute_stream(place)
    backend.wait(consumer, arrived)
    backend.use(copied, consumer)


class _Depart(torch.autograd.Function):
    """The source's end. In backward the compute stream here waits for the gradient that came back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, way: Way) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.way = way
        with without_dispatch_modes(), without_torch_function():  # no object of a user's class
            # the token: strides of zero give it the shape of the copy for one element of memory
            still = (0,) * tensor.dim()
            token: torch.Tensor = TensorBase.new_empty_strided(tensor, tensor.shape, still)
            return token

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        grad, way = grads[0], ctx.way
        if grad is not None and way.back is not None:
            if not way.back.bare:
                way.backend.spend("backward_node", way.source)
                receive(grad, way.backend, way.source, way.back.arrived)
                if not is_last_reference(way.held):
                    # releasing `held` lets autograd add to what was sent in place: only after tx has read it
                    way.backend.wait(way.made_on, way.back.left)
            way.back = way.held = way.made_on = None
        return grad, None


class _Arrive(torch.autograd.Function):
    """The target's end: the copy, as its consumers see it. In backward their gradient leaves from here."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, box: list[torch.Tensor], way: Way) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.way = way
        return box.pop()  # in a box it is no input, so it becomes the output itself, and no view of it

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        grad, way = grads[0], ctx.way
        if grad is None or way.backend.place_of(grad) == way.source:
            return grad, None, None
        way.backend.claim(grad, way.target)  # autograd made it here, but the backend has no mark of it
        if not takes_two_nodes(grad) or (torch.is_grad_enabled() and grad.requires_grad):
            # a sparse gradient, or one that double backward records, is sent and received here at once
            return transfer(grad, way.backend, way.source), None, None
        bare = way.backend.is_bare(way.source, way.target)
        way.back, way.held = Way(way.backend, way.target, way.source, bare), grad
        if bare:
            return way.backend.copy(grad, way.source, (None, None), gradient=True), None, None
        way.made_on = way.backend.compute_stream(way.target)
        sent = send(grad, way.back, "backward_node")
        if (
            torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
        ):  # it reads this node's output at once, before `_Depart` has waited
            receive(sent, way.backend, way.source, way.back.arrived)
        return sent, None, None


# by the class of C: torch's own `apply` looks for transforms, and ours for waiting values; there are none
_departed: Any = super(torch.autograd.Function, _Depart).apply
_arrived: Any = super(torch.autograd.Function, _Arrive).apply


class _Transfer(torch.autograd.Function):
    """A transfer in one node: on the streams that compute, and for functorch's wrappers."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: torch.Tensor, backend: AbstractBackend, target: str, beside: bool) -> torch.Tensor:
        return _copy_to(tensor, backend, target, beside=beside)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        tensor, ctx.backend, ctx.target, ctx.beside = inputs
        ctx.set_materialize_grads(False)
        ctx.source = ctx.backend.place_of(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None, None]:
        grad = grads[0]
        if grad is None or ctx.backend.place_of(grad) == ctx.source:
            return grad, None, None, None
        return transfer(grad, ctx.backend, ctx.source, beside=ctx.beside), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> torch.Tensor | None:
        tangent: torch.Tensor | None = tangents[0]
        return None if tangent is None else transfer(tangent, ctx.backend, ctx.target, beside=ctx.beside)


def _copy_to(tensor: torch.Tensor, backend: AbstractBackend, target: str, *, beside: bool) -> torch.Tensor:
    """The transfer itself, which autograd does not record."""
    if not beside:
        streams = backend.compute_stream(backend.place_of(tensor)), backend.compute_stream(target)
        return backend.copy(tensor, target, streams)
    way = Way(backend, backend.place_of(tensor), target)
    copied = send(tensor, way, "transfer")
    receive(copied, backend, target, way.arrived)
    return copied
