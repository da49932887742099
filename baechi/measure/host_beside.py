"""What others take of this machine's host, to compare the runtime's costs with: autograd, accelerate."""

import time
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import nn

FEATURES = 4

_STEPS = 50
_PAIRS = 100
_LEAST_ROUNDS = 9  # a difference of fewer medians is noise


@dataclass(frozen=True)
class HostBeside:
    """What the runtime's costs are compared with.

    Args:
        bare_pair_s: seconds of two calls of an empty `autograd.Function`.
        hooks_s: seconds that accelerate's hooks add to a layer call; None where it is not installed.
    """

    bare_pair_s: float
    hooks_s: float | None

    @classmethod
    def measured(cls, *, rounds: int) -> "HostBeside":
        """Measure it."""
        return cls(bare_pair_s(rounds=rounds), hooks_s(rounds=rounds))

    def least(self, other: "HostBeside") -> "HostBeside":
        """The smaller one of each."""
        hooks = [seconds for seconds in (self.hooks_s, other.hooks_s) if seconds is not None]
        return HostBeside(min(self.bare_pair_s, other.bare_pair_s), min(hooks, default=None))


class Ladder(nn.Module):
    """Two chains of layers side by side, each layer of one reached right after one of the other.

    Args:
        steps: how many layers each has.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = nn.ModuleList([nn.Linear(FEATURES, FEATURES) for _ in range(steps)])
        self.right = nn.ModuleList([nn.Linear(FEATURES, FEATURES) for _ in range(steps)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run both."""
        left = right = x
        for one, other in zip(self.left, self.right, strict=True):
            left, right = one(left), other(right)
        return left + right


class _Bare(torch.autograd.Function):
    """Does nothing: what any `autograd.Function` costs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def bare_pair_s(*, rounds: int = 30) -> float:
    """What two calls of an empty `autograd.Function` take, to measure a transfer by, which makes two."""
    x, taken_s = torch.ones(2, 4, requires_grad=True), []
    for _ in range(rounds):
        begun_s, made = time.process_time(), x
        for _ in range(2 * _PAIRS):
            made = _Bare.apply(made)  # type: ignore[no-untyped-call]
        taken_s.append((time.process_time() - begun_s) / _PAIRS)
    return median(taken_s)


def hooks_s(*, rounds: int = 30) -> float | None:
    """What accelerate's hooks add to a layer call."""
    if find_spec("accelerate") is None:
        return None
    x, plain, with_hooks = torch.ones(2, FEATURES), Ladder(_STEPS), hooked(Ladder(_STEPS))
    taken_s = [(timed(plain, x), timed(with_hooks, x)) for _ in range(max(rounds, _LEAST_ROUNDS))]
    plain_s, hooked_s = (median(seconds) for seconds in zip(*taken_s, strict=True))
    return (hooked_s - plain_s) / (2 * _STEPS) if hooked_s > plain_s else None


def hooked(model: nn.Module) -> nn.Module:
    """Put accelerate's hooks on linear layers, as `device_map` does."""
    hooks: Any = import_module("accelerate.hooks")
    for module in model.modules():
        if isinstance(module, nn.Linear):
            hook = hooks.AlignDevicesHook(execution_device="cpu", io_same_device=False)
            hooks.add_hook_to_module(module, hook)
    return model


def timed(model: nn.Module, x: torch.Tensor) -> float:
    """Seconds of processor time of a run that follows one of the same model, so that caches are filled."""
    model(x)
    start_s = time.process_time()
    model(x)
    return time.process_time() - start_s
