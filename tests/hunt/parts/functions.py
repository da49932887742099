"""Functions with backwards of their own, and a reversible layer that frees its input."""

from typing import Any

import torch
from torch import Tensor, nn


class Bent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.mul(4).round().div(4)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, other)
        ctx.scale = scale
        kept = other > 0
        ctx.mark_non_differentiable(kept)
        return x * other * scale, kept

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
        x, other = ctx.saved_tensors
        return grad * other * ctx.scale, grad * x * ctx.scale, None


class Freed(torch.autograd.Function):
    """An input comes back from the output in backward, so that forward need not keep it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Any, *weights: Tensor) -> Tensor:
        ctx.layer, ctx.weights, ctx.input = layer, weights, x
        with torch.no_grad():
            y = layer.there(x.detach())
        ctx.output = y if layer.sets else y.detach()  # `set_` is seen by the very same object only
        ctx.size = x.untyped_storage().nbytes()
        x.untyped_storage().resize_(0)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            before = ctx.layer.back(ctx.output)
            if ctx.layer.sets:
                ctx.input.set_(before)
            else:
                ctx.input.untyped_storage().resize_(ctx.size)
                ctx.input.copy_(before)
        with torch.enable_grad():
            x = ctx.input.detach().requires_grad_()
            grads = torch.autograd.grad(ctx.layer.there(x), (x, *ctx.weights), grad)
        return grads[0], None, *grads[1:]


class Reversible(nn.Module):
    def __init__(self, sets: bool = False) -> None:
        super().__init__()
        self.sets = sets
        self.one, self.two = (nn.Linear(2, 2, dtype=torch.double) for _ in range(2))

    def there(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        left = left + self.one(right).tanh()
        return torch.cat([left, right + self.two(left).tanh()], 1)

    def back(self, y: Tensor) -> Tensor:
        left, right = y.chunk(2, 1)
        right = right - self.two(left).tanh()
        return torch.cat([left - self.one(right).tanh(), right], 1)

    def forward(self, x: Tensor) -> Any:
        return Freed.apply(x, self, *self.parameters())
