"""Layers that leave state behind."""

from typing import Any

import torch
from torch import Tensor, nn


class Channel:
    value: Any = 0.0


class Shouts(nn.Module):
    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self.channel = channel
        self.weight = nn.Parameter(torch.rand(4, dtype=torch.double))

    def forward(self, x: Tensor) -> Tensor:
        self.channel.value = x * self.weight
        return x + self.weight


class Hears(nn.Module):
    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self.channel = channel
        self.weight = nn.Parameter(torch.rand(4, dtype=torch.double))

    def forward(self, x: Tensor) -> Any:
        return x * self.weight + self.channel.value


class Sees(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, dtype=torch.double))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x * self.weight
        return x + self.weight


class Counts(nn.Module):
    count: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, dtype=torch.double))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4, dtype=torch.double))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return (x - self.mean) * self.weight / self.count


class Registers(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, dtype=torch.double))

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "seen"):
            self.register_buffer("seen", x.detach().mean(0))
        self.seen.mul_(0.5).add_(x.detach().mean(0))
        return x * self.weight + self.seen
