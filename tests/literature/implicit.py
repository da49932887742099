"""Models as deep as a solver goes: fixed points and differential equations, with backwards of their own."""

from typing import Any

import torch
from architectures.base import noise
from torch import Tensor, autograd, nn
from torch.nn import functional as F


class Equilibrium(nn.Module):
    """The output is a fixed point, and so is its gradient, found by a hook; Bai, Kolter and Koltun 2019."""

    def __init__(self, width: int = 6, hidden: int = 8, limit: int = 30, tolerance: float = 1e-8) -> None:
        super().__init__()
        self.limit, self.tolerance = limit, tolerance
        self.inject, self.inner, self.outer = (
            nn.Linear(width, hidden),
            nn.Linear(hidden, hidden),
            nn.Linear(hidden, hidden),
        )
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, 3)
        with torch.no_grad():
            self.inner.weight.mul_(0.3)
            self.outer.weight.mul_(0.3)

    def cell(self, z: Tensor, injected: Tensor) -> Tensor:
        return torch.tanh(self.outer(torch.relu(self.inner(z))) + injected)

    def forward(self, x: Tensor) -> Tensor:
        injected = self.norm(self.inject(x))
        with torch.no_grad():
            z = self.solve(lambda z: self.cell(z, injected), torch.zeros_like(injected))
        z = self.cell(z, injected)
        if self.training and z.requires_grad:
            again = z.detach().requires_grad_()
            image = self.cell(again, injected)

            def implicit(grad: Tensor) -> Tensor:
                return self.solve(
                    lambda y: autograd.grad(image, again, y, retain_graph=True)[0] + grad,
                    torch.zeros_like(grad),
                )

            z.register_hook(implicit)
        out: Tensor = self.head(z)
        return out

    def solve(self, function: Any, start: Tensor) -> Tensor:
        for _ in range(self.limit):
            new = function(start)
            if (new - start).norm().item() < self.tolerance * (1 + start.norm().item()):
                return new
            start = new
        return start


class Adjoint(autograd.Function):
    """Solve an equation; go back by solving another one, so that nothing between is kept."""

    @staticmethod
    def forward(ctx: Any, dynamics: nn.Module, steps: int, state: Tensor, *weights: Tensor) -> Tensor:
        ctx.dynamics, ctx.steps = dynamics, steps
        for number in range(steps):
            state = runge_kutta(dynamics, number / steps, state, 1 / steps)
        ctx.save_for_backward(state, *weights)
        return state

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        state, *weights = ctx.saved_tensors
        (adjoint,), totals = grads, [torch.zeros_like(weight) for weight in weights]
        for number in reversed(range(ctx.steps)):
            with torch.no_grad():
                before = runge_kutta(ctx.dynamics, (number + 1) / ctx.steps, state, -1 / ctx.steps)
            with torch.enable_grad():
                leaf = before.detach().requires_grad_()
                after = runge_kutta(ctx.dynamics, number / ctx.steps, leaf, 1 / ctx.steps)
                adjoint, *slopes = autograd.grad(after, [leaf, *weights], adjoint)
            totals = [total + slope for total, slope in zip(totals, slopes, strict=True)]
            state = before
        return None, None, adjoint, *totals


def runge_kutta(dynamics: nn.Module, time: float, state: Tensor, step: float) -> Tensor:
    one = dynamics(time, state)
    two = dynamics(time + step / 2, state + step / 2 * one)
    three = dynamics(time + step / 2, state + step / 2 * two)
    four = dynamics(time + step, state + step * three)
    return state + step / 6 * (one + 2 * two + 2 * three + four)


class Dynamics(nn.Module):
    """How fast a state changes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width + 1, 12), nn.Linear(12, width)

    def forward(self, time: float, state: Tensor) -> Tensor:
        change: Tensor = self.second(torch.tanh(self.first(F.pad(state, (0, 1), value=time))))
        return change


class NeuralODE(nn.Module):
    """Layers say how a state changes; output and gradient are solutions; Chen et al. 2018."""

    def __init__(self, width: int = 5, steps: int = 3) -> None:
        super().__init__()
        self.steps = steps
        self.encode, self.dynamics = nn.Linear(4, width), Dynamics(width)
        self.beside, self.decode = nn.Linear(4, width), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        start = self.encode(x)
        end = Adjoint.apply(self.dynamics, self.steps, start, *self.dynamics.parameters())
        return self.decode(end + self.beside(x)), end - start


def features() -> dict[str, Any]:
    return {"x": noise(4, 6)}


def points() -> dict[str, Any]:
    return {"x": noise(5, 4)}
