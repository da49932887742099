"""Gradients of weights while a schedule runs: they add up apart from those that are there."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.backend.transfer import transfer
from baechi.torchlib.private.tensors import hooks_of, later_hooks_of, multiply_each, storage_address
from baechi.torchlib.split_tensors.tensor import SplitTensor
from baechi.torchlib.tensors.references import has_memory_alone


class Waiting:
    """Gradients of one step that wait until `backward` hands them over.

    Args:
        weights: those that require a gradient.

    Attributes:
        grads: by place among the weights, the gradient; None if there is none yet.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self.weights = weights
        self.grads: list[torch.Tensor | None] = [None] * len(weights)
        self._aside: Any = None  # the caller's gradients; tables of hooks, and what was in them

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Within this context backward adds to these gradients, and hooks of weights do not run.

        The caller's gradients and hooks are aside: hooks run once, when the gradients are handed over.
        """
        before = [weight.grad for weight in self.weights]
        tables = [of(weight) for weight in self.weights for of in (hooks_of, later_hooks_of)]
        hooked = [(table, dict(table)) for table in tables if table]
        try:
            self._aside = before, hooked
            for table, _ in hooked:
                table.clear()  # torch looks into it when the gradient comes
            for weight, grad in zip(self.weights, self.grads, strict=True):
                weight.grad = grad
            self.grads = []
            yield
            self.grads = [weight.grad for weight in self.weights]
        finally:
            self.put_back()

    def put_back(self) -> None:
        """Give weights the caller's gradients and hooks again, if these are aside."""
        if self._aside is None:
            return
        before, hooked = self._aside
        for weight, grad in zip(self.weights, before, strict=True):
            weight.grad = grad
        for table, hooks in hooked:
            table.update(hooks)
        self._aside = None

    def take(self) -> list[torch.Tensor | None]:
        """The gradients; they are kept no more."""
        grads, self.grads = self.grads, [None] * len(self.weights)
        return grads


def keep_apart(
    backend: AbstractBackend, leaves: Iterable[torch.Tensor], handed: Iterable[torch.Tensor]
) -> None:
    """Give gradients of leaves memory of their own, if others show the same that are still to be read.

    Autograd takes the first gradient of a leaf as it is, which may be a view of one that goes elsewhere, too.
    Those of later microbatches are added in place.

    Args:
        backend: the devices.
        leaves: weights, and inputs in parts.
        handed: gradients that were given to a backward, or that it handed on.
    """
    memory = {_address(grad) for grad in handed if not _is_alone(grad)}
    if not memory:
        return
    for leaf in leaves:
        grad = leaf.grad
        if grad is not None and any(_address(one) in memory for one in _pieces(grad)):
            with torch.no_grad(), backend.at(backend.place_of(grad), ""):
                leaf.grad = grad.clone()


def _pieces(grad: torch.Tensor) -> Sequence[torch.Tensor]:
    return grad.pieces if isinstance(grad, SplitTensor) else (grad,)


def _is_alone(grad: torch.Tensor) -> bool:
    return grad.layout != torch.strided or isinstance(grad, SplitTensor) or has_memory_alone(grad)


def _address(tensor: torch.Tensor) -> int:
    return storage_address(tensor.untyped_storage()) if tensor.layout == torch.strided else 0


def scale(backend: AbstractBackend, grads: list[torch.Tensor | None], factor: torch.Tensor) -> None:
    """Multiply gradients by a scalar that lies on a device: in place, by one operator a device.

    Args:
        backend: the devices.
        grads: by place in the list, they may become others: a sparse one does.
        factor: the scalar, which the host does not read.
    """
    dense: dict[str, list[torch.Tensor]] = {}
    there = {backend.place_of(factor): factor}
    for number, grad in enumerate(grads):
        if grad is None:
            continue
        place = backend.place_of(grad)
        if place not in there:
            there[place] = transfer(factor, backend, place)
            backend.leave(there[place])
        for piece in _pieces(grad):  # the caller's stream multiplies it, and adds it to one from before
            backend.leave(piece)
        if grad.layout == torch.strided:
            dense.setdefault(place, []).append(grad)
        else:
            grads[number] = grad * there[place]
    for place, together in dense.items():
        multiply_each(together, there[place])


def of_parts(
    backend: AbstractBackend, whole: torch.Tensor, dim: int | None, parts: Sequence[torch.Tensor]
) -> torch.Tensor | None:
    """The gradient of an input, from those of its parts, which are kept no more; None if they have none.

    Args:
        backend: the devices.
        whole: the input.
        dim: along which it was split; None if each microbatch got all of it.
        parts: what the microbatches got.
    """
    if all(part.grad is None for part in parts):
        return None
    with torch.no_grad(), backend.at(backend.place_of(whole), ""):
        grads = [torch.zeros_like(part) if part.grad is None else part.grad for part in parts]
        for part in parts:
            part.grad = None
        return torch.stack(grads).sum(0) if dim is None else torch.cat(grads, dim)
