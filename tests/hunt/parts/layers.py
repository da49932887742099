"""Layers with weights of their own, written as people write them."""

from typing import Any

import torch
from torch import Tensor, nn


class Mix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, dtype=torch.double))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return x * self.weight + other


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4, dtype=torch.double))

    def forward(self, x: Tensor, module: nn.Linear) -> Tensor:
        return x @ module.weight * self.scale + module.bias


class Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4, dtype=torch.double))

    def forward(self, x: Tensor, module: Any) -> Any:
        return module(x * self.scale)


class Fills(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, dtype=torch.double))

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(self.weight)


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, dtype=torch.double))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        target[:, :2] = x[:, :2] * self.weight[:2]
        return x + self.weight


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, dtype=torch.double))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * self.weight
        return y, y[:, :2]
