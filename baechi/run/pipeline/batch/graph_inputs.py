"""Where a microbatch's graph begins: at inputs that get gradients, as results and no leaves."""

from typing import Any

import torch


class Beginning:
    """From a part of an input, what the model's code gets: the same memory, which it may write in place.

    Autograd forbids that of leaves. Outside of microbatches such an input is the result of something, too.
    """

    def __init__(self) -> None:
        self._begun: dict[int, torch.Tensor] = {}

    def __call__(self, part: torch.Tensor) -> torch.Tensor:
        """A result with the part's memory, the same at each call; the part itself if it gets no gradient."""
        if not (part.requires_grad and part.is_leaf and torch.is_grad_enabled()):
            return part
        if id(part) not in self._begun:
            self._begun[id(part)] = _Begun.apply(part, [part.detach()])  # type: ignore[no-untyped-call]
        return self._begun[id(part)]


class _Begun(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, box: list[torch.Tensor]) -> torch.Tensor:
        return box.pop()  # in a box it is no input, so it becomes the output itself, and no view of it

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None
