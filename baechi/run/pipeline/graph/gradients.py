"""Gradients of weights while a schedule runs: they add up apart from those that are there."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from baechi.backend import AbstractBackend
from baechi.backend.transfer import transfer
from baechi.torchlib.private.tensors import hooks_of, later_hooks_of, multiply_each, storage_address
from baechi.torchlib.shards.tensor import ShardedTensor, plain_parts
from baechi.torchlib.streams import Streams, follow, on_streams
from baechi.torchlib.tensors.references import has_memory_alone


class _Aside(NamedTuple):
    """What a leaf had before the step.

    Args:
        leaf: the leaf.
        grad: its gradient.
        hooks: its tables of hooks, and what was in them.
    """

    leaf: torch.Tensor
    grad: torch.Tensor | None
    hooks: tuple[tuple[dict[Any, Any], dict[Any, Any]], ...]


class Waiting:
    """Gradients of one step that wait until `backward` hands them over.

    Args:
        weights: those that require a gradient.
        inputs: inputs in parts, as far as they get gradients: of their own, which do not wait.

    Attributes:
        weights: those, then what else the model's code was found to read.
        grads: by place among the weights, the gradient; None if there is none yet.
    """

    def __init__(self, weights: Iterable[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        self.weights = list(weights)
        self.inputs = inputs
        self.grads: list[torch.Tensor | None] = [None] * len(self.weights)
        self._aside: list[_Aside] = []

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Within this context backward adds to these gradients, and hooks of weights do not run.

        The caller's gradients and hooks are aside: hooks run once, when the gradients are handed over.
        """
        try:
            for weight, grad in zip(self.weights, self.grads, strict=True):
                self._put_aside(weight, grad)
            self.grads = []
            yield
            self.grads = list(map(attrgetter("grad"), self.weights))
        finally:
            self.put_back()

    def take_in(self, leaf: torch.Tensor) -> None:
        """Let the gradient of one more leaf wait, which no backward has reached yet."""
        self.weights.append(leaf)
        self._put_aside(leaf, None)

    def _put_aside(self, leaf: torch.Tensor, grad: torch.Tensor | None) -> None:
        """From now on a leaf has another gradient, and no hooks."""
        hooks: tuple[tuple[dict[Any, Any], dict[Any, Any]], ...] = ()
        for table in (hooks_of(leaf), later_hooks_of(leaf)):
            if table:
                hooks = (*hooks, (table, dict(table)))
        self._aside.append(_Aside(leaf, leaf.grad, hooks))
        for table, _ in hooks:
            table.clear()  # torch looks into it when the gradient comes
        leaf.grad = grad

    def put_back(self) -> None:
        """Give leaves the caller's gradients and hooks again, if these are aside."""
        for leaf, grad, hooks in self._aside:
            leaf.grad = grad
            for table, before in hooks:
                table.update(before)
        self._aside = []


def keep_apart(
    backend: AbstractBackend, leaves: Iterable[torch.Tensor], handed: Iterable[torch.Tensor | None]
) -> None:
    """Give gradients of leaves memory of their own, if others show the same that are still to be read.

    Autograd takes the first gradient of a leaf as it is, which may be a view of one that goes elsewhere, too.
    Those of later microbatches are added in place.
    """
    memory: set[int] = set()
    for grad in handed:
        if grad is None or grad.layout != torch.strided or isinstance(grad, ShardedTensor):
            continue
        if not has_memory_alone(grad):
            memory.add(_address(grad))
    if not memory:
        return
    for leaf in leaves:
        own = leaf.grad
        if own is not None and any(_address(one) in memory for one in plain_parts(own)):
            with torch.no_grad(), backend.at(backend.place_of(own), ""):
                leaf.grad = own.clone()


def _address(tensor: torch.Tensor) -> int:
    return storage_address(tensor.untyped_storage()) if tensor.layout == torch.strided else 0


def scaled(
    backend: AbstractBackend,
    waiting: list[torch.Tensor],
    streams: Streams,
    incoming: Sequence[torch.Tensor | None],
) -> list[torch.Tensor | None]:
    """Gradients that wait, times the gradient of the loss, which the host does not read.

    On the streams of the call, as autograd does it: `backward()` may be called on others.
    """
    (grad,) = incoming
    if grad is None:
        return [None] * len(waiting)
    found: list[torch.Tensor | None] = [*waiting]
    waiting.clear()
    with torch.no_grad(), on_streams(streams):
        scale(backend, found, grad.reshape(()))
    follow(streams)
    return found


def scale(backend: AbstractBackend, grads: list[torch.Tensor | None], factor: torch.Tensor) -> None:
    """Multiply gradients by a scalar that lies on a device: in place, by one operator a device."""
    dense: dict[str, list[torch.Tensor]] = {}
    there = {backend.place_of(factor): factor}
    for number, grad in enumerate(grads):
        if grad is None:
            continue
        place = backend.place_of(grad)
        if place not in there:
            known = backend.known_to_all(factor)
            there[place] = transfer(factor, backend, place) if known is None else known
            backend.leave(there[place])
        for shard in plain_parts(grad):  # the caller's stream multiplies it, and adds it to one from before
            backend.leave(shard)
        if grad.layout == torch.strided:
            dense.setdefault(place, []).append(grad)
        else:
            grads[number] = grad * there[place]
    for place, together in dense.items():
        multiply_each(together, there[place])
