"""Models that learn in forward, or whose weights another one makes: teachers, inner loops, hypernetworks."""

import copy
from typing import Any

import torch
from architectures.base import noise
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F


class BYOL(nn.Module):
    """A student predicts what its own moving average says of another view; Grill et al. 2020."""

    def __init__(self, width: int = 10, hidden: int = 8, decay: float = 0.9) -> None:
        super().__init__()
        self.decay = decay
        self.student = nn.Sequential(
            nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, hidden)
        )
        self.predict = nn.Sequential(
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, hidden)
        )
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, view: Tensor, other: Tensor) -> Tensor:
        if self.training:
            self.follow()
        losses = [self.distance(view, other), self.distance(other, view)]
        return torch.stack(losses).mean(0)

    @torch.no_grad()
    def follow(self) -> None:
        """The teacher's weights move towards the student's, its statistics are copied."""
        for mine, others in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mine.mul_(self.decay).add_(others, alpha=1 - self.decay)
        for mine, others in zip(self.teacher.buffers(), self.student.buffers(), strict=True):
            mine.copy_(others)

    def distance(self, view: Tensor, other: Tensor) -> Tensor:
        guess = F.normalize(self.predict(self.student(view)), dim=-1)
        with torch.no_grad():
            aim = F.normalize(self.teacher(other), dim=-1)
        return 2 - 2 * (guess * aim).sum(-1)


class MAML(nn.Module):
    """Weights from which a few steps of gradient descent learn a task; Finn, Abbeel and Levine 2017.

    The steps are part of forward: what they lead to is differentiated through them.
    """

    def __init__(self, hidden: int = 8, steps: int = 2, rate: float = 0.1) -> None:
        super().__init__()
        self.steps = steps
        self.embed = nn.Linear(1, hidden)
        self.learner = nn.Sequential(nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.rates = nn.ParameterDict(
            {
                name.replace(".", "_"): nn.Parameter(torch.full_like(weight, rate))
                for name, weight in self.learner.named_parameters()
            }
        )

    def forward(self, known_x: Tensor, known_y: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        guesses, losses = [], []
        for task in range(len(known_x)):
            weights = dict(self.learner.named_parameters())
            with torch.enable_grad():
                for _ in range(self.steps):
                    loss = F.mse_loss(self.guess(weights, known_x[task]), known_y[task])
                    slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=self.training)
                    weights = {
                        name: weight - self.rates[name.replace(".", "_")] * slope
                        for (name, weight), slope in zip(weights.items(), slopes, strict=True)
                    }
            guesses.append(self.guess(weights, asked[task]))
            losses.append(loss.detach())
        return torch.stack(guesses), torch.stack(losses)

    def guess(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        guess: Tensor = functional_call(self.learner, weights, (self.embed(x),))
        return guess


class HyperNetwork(nn.Module):
    """A small network writes the weights of a large one, layer by layer; Ha, Dai and Le 2017."""

    def __init__(self, width: int = 6, depth: int = 3, code: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.width = width
        self.codes = nn.Parameter(torch.randn(depth, code))
        self.writer = nn.Sequential(nn.Linear(code, 12), nn.ReLU(), nn.Linear(12, width * width + 2 * width))
        self.stem, self.classify = nn.Conv2d(3, width, 3, padding=1), nn.Linear(width, classes)
        self.per_image = nn.Linear(width, code)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for code in self.codes:
            weight, scale, shift = self.writer(code).split([self.width**2, self.width, self.width])
            y = F.conv2d(x, weight.view(self.width, self.width, 1, 1))
            y = F.group_norm(y, 2, 1 + scale, shift)
            x = x + F.relu(y, inplace=True)
        own = self.writer(self.per_image(x.mean((2, 3))))[:, : self.width**2].unflatten(1, (self.width, -1))
        mixed = torch.vmap(torch.matmul)(own, x.flatten(2))
        logits: Tensor = self.classify(mixed.amax(-1))
        return logits


def views() -> dict[str, Any]:
    return {"view": noise(6, 10), "other": noise(6, 10, seed=2)}


def tasks() -> dict[str, Any]:
    known, asked = noise(2, 4, 1), noise(2, 3, 1, seed=2)
    return {"known_x": known, "known_y": torch.sin(known), "asked": asked}


def photo() -> dict[str, Any]:
    return {"image": noise(2, 3, 6, 6)}
