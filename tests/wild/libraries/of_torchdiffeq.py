"""torchdiffeq: solvers of differential equations. Adaptive ones choose their steps by the whole batch."""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torchdiffeq import odeint, odeint_adjoint, odeint_event

from wild.specimen import Batch, Specimen


class _Field(nn.Module):
    """What changes the state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 4)

    def forward(self, time: Tensor, state: Tensor) -> Tensor:
        change: Tensor = self.last(torch.tanh(self.first(state)) * (1 + time))
        return change


class _Solved(nn.Module):
    """An encoder, the equation, and a decoder."""

    def __init__(self, solve: Any = odeint, **options: Any) -> None:
        super().__init__()
        self.encoder, self.field, self.decoder = nn.Linear(3, 4), _Field(), nn.Linear(4, 2)
        self.solve, self.options = solve, options
        self.register_buffer("times", torch.linspace(0, 1, 3))

    def forward(self, x: Tensor) -> Tensor:
        states = self.solve(self.field, self.encoder(x), self.times, **self.options)
        found: Tensor = self.decoder(states[-1])
        return found


class _Flow(nn.Module):
    """A continuous flow: the state and its log density, with an exact trace."""

    def __init__(self) -> None:
        super().__init__()
        self.field = _Field()

    def forward(self, x: Tensor) -> Tensor:
        state = (x, torch.zeros(len(x), dtype=x.dtype, device=x.device))
        times = torch.tensor([0.0, 1.0], dtype=x.dtype, device=x.device)
        z, change = odeint(self._both, state, times, method="rk4", options={"step_size": 0.5})
        return -(-0.5 * z[-1].square().sum(-1) - change[-1]).mean()

    def _both(self, time: Tensor, state: Any) -> Any:
        with torch.enable_grad():
            z = state[0].requires_grad_(True)
            dz = self.field(time, z)
            trace = sum(
                torch.autograd.grad(dz[:, i].sum(), z, create_graph=True)[0][:, i] for i in range(z.shape[1])
            )
        return dz, trace


class _Event(nn.Module):
    """When a falling point reaches the ground."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.field = nn.Linear(3, 1), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        state = self.start(x).abs().mean().view(1) + 1
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        time, states = odeint_event(
            lambda t, s: -1 - self.field(s).abs(), state, zero, event_fn=lambda t, s: s[0], method="rk4",
            options={"step_size": 0.1},
        )  # fmt: skip
        total: Tensor = time + states[-1].sum()
        return total


def _rows() -> Batch:
    return (torch.randn(8, 3),)


def specimens() -> list[Specimen]:
    """Solvers by method."""
    coarse = {"rtol": 0.1, "atol": 0.1}
    half: dict[str, Any] = {"options": {"step_size": 0.5}}
    rows = {
        "rk4": functools.partial(_Solved, method="rk4", **half),
        "euler": functools.partial(_Solved, method="euler", **half),
        "implicit_adams": functools.partial(_Solved, method="implicit_adams", **half),
        "dopri5": functools.partial(_Solved, method="dopri5", **coarse),
        "bosh3": functools.partial(_Solved, method="bosh3", **coarse),
        "adjoint, rk4": functools.partial(_Solved, odeint_adjoint, method="rk4", **half),
        "adjoint, dopri5": functools.partial(_Solved, odeint_adjoint, method="dopri5", **coarse),
    }
    found = [Specimen("torchdiffeq", name, build, _rows) for name, build in rows.items()]
    found.append(Specimen("torchdiffeq", "continuous flow", _Flow, lambda: (torch.randn(8, 4),)))
    return [*found, Specimen("torchdiffeq", "event", _Event, _rows)]
