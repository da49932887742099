"""Gradients of weights while a schedule runs: they add up apart from those that are there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from baechi.backend import AbstractBackend
from baechi.backend.transfer import transfer
from baechi.torchlib.private.tensors import hooks_of, later_hooks_of, multiply_each


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

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Within this context backward adds to these gradients, and hooks of weights do not run.

        The caller's gradients and hooks are aside: hooks run once, when the gradients are handed over.
        """
        before = [weight.grad for weight in self.weights]
        tables = [of(weight) for weight in self.weights for of in (hooks_of, later_hooks_of)]
        hooked = [(table, dict(table)) for table in tables if table]
        for table, _ in hooked:
            table.clear()  # torch looks into it when the gradient comes
        for weight, grad in zip(self.weights, self.grads, strict=True):
            weight.grad = grad
        self.grads = []
        try:
            yield
        finally:
            self.grads = [weight.grad for weight in self.weights]
            for weight, grad in zip(self.weights, before, strict=True):
                weight.grad = grad
            for table, hooks in hooked:
                table.update(hooks)

    def take(self) -> list[torch.Tensor | None]:
        """The gradients; they are kept no more."""
        grads, self.grads = self.grads, [None] * len(self.weights)
        return grads


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
        if grad.layout == torch.strided:
            dense.setdefault(place, []).append(grad)
        else:
            grads[number] = grad * there[place]
    for place, together in dense.items():
        multiply_each(together, there[place])
