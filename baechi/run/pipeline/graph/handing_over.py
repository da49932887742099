"""Gradients of a schedule, handed to autograd: one node stands for the model.

    weights, inputs ──▶ _Inner ──token, on the host──▶ _Outer ──▶ loss, or the joined outputs
                        gives their gradients          takes the incoming ones

The engine runs a node in the thread of its output's device. The inner node may run a whole schedule, which
needs the threads of all devices. So its output is a token on the host: it runs in the caller's thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from baechi.errors import UNSPLIT_CURE, BaechiError
from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function
from baechi.torchlib.private.transforms import is_batch

Gradients = Callable[[Sequence[torch.Tensor | None]], list[torch.Tensor | None]]
"""From the gradients of the results, those of the weights and inputs."""


@dataclass(eq=False, slots=True)
class _Box:
    """What the two nodes share.

    Args:
        gradients: called once.
        zero: the gradient of the token.
        way: how the step runs, and what to do where that is in the way; for errors.
        incoming: the gradients of the results.
    """

    gradients: Gradients | None
    zero: torch.Tensor
    way: tuple[str, str]
    incoming: tuple[torch.Tensor | None, ...] = ()


class _Inner(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, box: _Box, token: list[torch.Tensor], handle: torch.Tensor, *given: torch.Tensor
    ) -> torch.Tensor:
        ctx.box = box
        return token.pop()  # in a list it is no input, so it becomes the output itself

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        box: _Box = ctx.box
        gradients, box.gradients = box.gradients, None
        if gradients is None:
            how, cure = box.way
            raise RuntimeError(
                f"Trying to backward through a step {how} a second time: its gradients were handed over. "
                f"Call the model again, or, for several backwards through one call, {cure}"
            )
        incoming, box.incoming = box.incoming, ()
        return (None, None, None, *gradients(incoming))


class _Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, box: _Box, results: list[torch.Tensor]) -> Any:
        ctx.set_materialize_grads(False)
        ctx.box = box
        made = tuple(results)
        results.clear()  # in a list they are no inputs, so they become the outputs themselves
        return made

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor, None, None]:
        if torch.is_grad_enabled():  # only then: `once_differentiable` would say it too late, or never
            how, cure = ctx.box.way
            raise BaechiError(
                f"create_graph=True through a step {how}: its gradients have no history, so what is computed "
                f"of them (a gradient penalty) would train nothing: {cure}"
            )
        for grad in grads:
            if grad is not None and is_batch(grad):
                how, cure = ctx.box.way
                raise BaechiError(
                    "a batch of gradients (is_grads_batched=True, jacobian or hessian with vectorize=True) "
                    f"goes through a step {how}, whose backward runs once: {cure}"
                )
        ctx.box.incoming = grads
        return ctx.box.zero, None, None


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, handle: torch.Tensor, box: list[torch.Tensor], *leads_to: torch.Tensor
    ) -> torch.Tensor:
        return box.pop()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> None:
        raise BaechiError(
            "this output has no gradient any more: the step ran its whole schedule, backward included, for "
            "the loss that the model returned. To differentiate another one, give distribute(..., loss=fn), "
            "or distribute the model without microbatches"
        )


IN_MICROBATCHES = "in microbatches", UNSPLIT_CURE


def handed_over(
    results: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
    gradients: Gradients,
    way: tuple[str, str] = IN_MICROBATCHES,
) -> tuple[torch.Tensor, ...]:
    """Let the backward of some results give the gradients of weights and inputs."""
    with without_dispatch_modes(), without_torch_function():
        handle = torch.zeros((), device="cpu").requires_grad_()  # so that there is a backward, always
        on_host, zero = torch.zeros((), device="cpu"), torch.zeros((), device="cpu")
    box = _Box(gradients, zero, way)
    token = _Inner.apply(box, [on_host], handle, *given)  # type: ignore[no-untyped-call]
    made: tuple[torch.Tensor, ...] = _Outer.apply(token, box, list(results))  # type: ignore[no-untyped-call]
    return made


def without_gradient(tensor: torch.Tensor, leads_to: Sequence[torch.Tensor] = ()) -> torch.Tensor:
    """A tensor that requires a gradient, and says why it has none when that is asked for.

    `torch.autograd.grad` runs only what leads to the tensors that it is given. So to be asked, this one leads
    to what the step's loss leads to.
    """
    with without_dispatch_modes(), without_torch_function():
        handle = torch.zeros((), device="cpu").requires_grad_()
    made: torch.Tensor = _NoGradient.apply(handle, [tensor], *leads_to)  # type: ignore[no-untyped-call]
    return made
