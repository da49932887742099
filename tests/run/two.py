"""Two layers and a forward that is given, on one device and on two."""

from collections.abc import Callable
from typing import Any

import torch
from same import identical
from torch import nn

import baechi


class Two(nn.Module):
    """Two layers and a forward that is given."""

    def __init__(self, forward: Callable[..., Any], **more: Any) -> None:
        super().__init__()
        self.a, self.b, self.function = nn.Linear(4, 4), nn.Linear(4, 4), forward
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def same_on_two_devices(
    build: Callable[[], nn.Module], steps: int = 2, training: bool = True, by_hand: bool = True
) -> nn.Module:
    """A model that was captured and distributed does `steps` calls as its plain twin does, and in
    training the backward of the last one."""
    torch.manual_seed(0)
    plain = build().train(training)
    torch.manual_seed(0)
    model = build().train(training)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    expected = [plain(x.clone()) for _ in range(steps)]
    cluster = baechi.Cluster.virtual(2)
    where: Any = {"device_map": {"a": 0, "b": 1, "": 1}} if by_hand else {"placer": "random:0"}
    baechi.distribute(model, x.clone(), cluster=cluster, **where)
    with cluster:
        results = [model(x.clone()) for _ in range(steps)]
        if training:
            for last in (expected[-1], results[-1]):
                (last * last).sum().backward()
    assert all(identical(a, b) for a, b in zip(expected, results, strict=True))
    grads = [[p.grad for p in network.parameters() if p.grad is not None] for network in (plain, model)]
    assert len(grads[0]) == len(grads[1]) and bool(grads[0]) == training
    assert all(identical(a, b) for a, b in zip(*grads, strict=True))
    return model
