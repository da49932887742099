"""Steps with values, as a dry run does them without."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import baechi
from baechi.run.dry.loop import losses_of

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=1e-3),
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3),
    "adafactor": lambda weights: torch.optim.Adafactor(weights, lr=1e-3),
    "rprop": lambda weights: torch.optim.Rprop(weights, lr=1e-3),
    "adam, foreach": lambda weights: torch.optim.Adam(weights, lr=1e-3, foreach=True),
}


def ran(
    model: nn.Module, inputs: Any, plan: baechi.Plan, way: str, *, steps: int = 2, reorder: Any = True
) -> baechi.Timeline:
    """Steps on the emulated cluster, each begun when the devices are idle; the last one's timeline."""
    training = way != "inference"
    model = baechi.assign(model.train(training), plan, reorder=reorder)
    optimizer = OPTIMIZERS[way](model.parameters()) if training else None

    def step() -> None:
        model.zero_grad()
        outputs = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
        if optimizer is not None:
            torch.autograd.backward(losses_of(outputs))
            optimizer.step()

    with plan.cluster, torch.set_grad_enabled(training):
        for _ in range(steps):
            plan.cluster.emulation.synchronize()
            step()
        timeline: baechi.Timeline = plan.cluster.emulation.timeline()
    return timeline
