"""A transfer as autograd sees it: the tensor goes one way, its gradient comes back the other."""

from typing import Any

import torch

from baechi.backend.abstract import AbstractBackend


class _Transfer(torch.autograd.Function):
    """Identity in value: only the place changes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: torch.Tensor, backend: AbstractBackend, target: str) -> torch.Tensor:
        return backend.copy(tensor, target)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        tensor, ctx.backend, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.source = ctx.backend.place_of(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        grad = grads[0]
        if grad is None or ctx.backend.place_of(grad) == ctx.source:
            return grad, None, None
        return transfer(grad, ctx.backend, ctx.source), None, None


def transfer(tensor: torch.Tensor, backend: AbstractBackend, target: str) -> torch.Tensor:
    """Copy a tensor to a place; autograd carries its gradient back to where the tensor lies.

    Args:
        tensor: any tensor.
        backend: the devices.
        target: a device's name, or another place that the backend knows.

    Returns:
        A copy with the same values and layout, differentiable (twice, too) if the tensor is.
    """
    # what a functorch tensor wraps may require a gradient though the wrapper says no
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    if torch.is_grad_enabled() and (tensor.requires_grad or wrapped):
        copied: torch.Tensor = _Transfer.apply(tensor, backend, target)  # type: ignore[no-untyped-call]
        return copied
    return backend.copy(tensor, target)
