"""A case: a small model, a batch, and how it is split."""

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .objectives import APART, BESIDE, COUPLED, OUTPUTS, Given

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
INITS = ("normal", "zero head", "zero gate")
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1))
HOLDS = ("bare", "dict", "tuple", "object")
DRAWS = ("dropout", "noise", "mask", "mixup")


@dataclass(frozen=True)
class Case:
    """What is run.

    Args:
        seed: of the numbers.
        objective: a loss, or an output.
        is_loss: whether the model returns a loss.
        rows, microbatches: of the batch.
        dtype, init, draws: of the model.
        shape, holds, beside: of the loss, where it is, and what is beside it.
        a, b: numbers that differ.
        ignored: how many labels are.
        time_first: whether the first dimension of `x` is no batch's.
    """

    seed: int
    objective: str
    is_loss: bool
    rows: int
    microbatches: int
    dtype: str
    init: str
    draws: str
    shape: tuple[int, ...]
    holds: str
    beside: tuple[str, ...]
    a: float
    b: float
    ignored: float
    time_first: bool

    @property
    def couples(self) -> bool:
        """Whether rows know each other, for most batches."""
        return self.objective in COUPLED


def kinds(half: int | None) -> list[tuple[str, bool]]:
    """Objectives, and whether each is a loss: all, or one half of them.

    Args:
        half: 0 or 1; None for all.
    """
    named = [(name, True) for name in (*APART, *COUPLED)] + [(name, False) for name in OUTPUTS]
    return named if half is None else named[half::2]


def draw(seed: int, half: int | None = None) -> Case:
    """A case; equal seeds give equal cases.

    Args:
        seed: which.
        half: see `kinds`.
    """
    chance = Random(seed)
    objective, is_loss = chance.choice(kinds(half))
    rows = chance.choice((4, 6, 7, 8, 9, 12))
    return Case(
        seed,
        objective,
        is_loss,
        rows,
        chance.choice([one for one in (2, 3, 4, rows) if one <= rows]),
        chance.choices(list(DTYPES), (6, 3, 2))[0],
        chance.choices(INITS, (5, 2, 2))[0],
        chance.choice(DRAWS) if chance.random() < 0.08 else "",
        chance.choice(SHAPES),
        chance.choice(HOLDS),
        tuple(chance.sample(list(BESIDE), chance.choice((0, 0, 1, 2)))),
        round(chance.uniform(0.2, 2.0), 2),
        round(chance.uniform(0.2, 2.0), 2),
        chance.choice((0.0, 0.0, 0.3, 0.6)),
        not is_loss and chance.random() < 0.08,
    )


class Result:
    """An object with a loss."""

    def __init__(self, loss: Tensor, **others: Any) -> None:
        self.loss = loss
        vars(self).update(others)


class Net(nn.Module):
    """Two layers, a gate, and an objective."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.a: nn.Module = nn.GRU(6, 6) if case.time_first else nn.Linear(6, 6)
        self.b, self.gate, self.case = nn.Linear(6, 6), nn.Parameter(torch.ones(1)), case
        self.register_buffer("bank", torch.randn(6, 6))
        with torch.no_grad():
            for weight in self.b.parameters() if case.init == "zero head" else ():
                weight.zero_()
            if case.init == "zero gate":
                self.gate.zero_()

    def forward(self, x: Tensor, labels: Tensor, targets: Tensor, mask: Tensor) -> Any:
        case = self.case
        before = self.a(x)[0] if case.time_first else self.a(x).tanh()
        before = drawn(case.draws, before)
        made = self.b(before)
        if case.time_first:
            return made
        given = Given(made, before, x, labels, targets, mask, self.bank, case.a, case.b)  # type: ignore[arg-type]
        if not case.is_loss:
            return OUTPUTS[case.objective](given)
        loss = {**APART, **COUPLED}[case.objective](given)
        if case.init == "zero gate":
            loss = F.mse_loss(made, targets) + (self.gate * loss).sum()
        loss = loss.reshape(case.shape)
        beside = {name: BESIDE[name](given) for name in case.beside}
        if case.holds == "object":
            return {"loss": loss, "made": made, **beside}
        if case.holds == "dict":
            return {**beside, "loss": loss}
        return (loss, *beside.values()) if case.holds == "tuple" else loss


def drawn(how: str, value: Tensor) -> Tensor:
    """A value with random numbers.

    Args:
        how: one of `DRAWS`; empty for none.
        value: with rows.
    """
    if how == "dropout":
        return F.dropout(value, 0.3)
    if how == "noise":
        return value + 0.1 * torch.randn_like(value)
    if how == "mask":
        return value * (torch.rand(len(value), *[1] * (value.dim() - 1), dtype=value.dtype) > 0.3)
    return value + 0.3 * value[torch.randperm(len(value))] if how == "mixup" else value


def built(case: Case) -> nn.Module:
    """The model of a case."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        return Net(case).to(DTYPES[case.dtype]).train()


def batch(case: Case, number: int = 0) -> tuple[Tensor, ...]:
    """A batch of a case.

    Args:
        case: the case.
        number: of the step.
    """
    chance, rows, dtype = (
        torch.Generator().manual_seed(case.seed + 1000 * number),
        case.rows,
        DTYPES[case.dtype],
    )
    shape = (rows, 5, 6) if case.time_first else (rows, 6)
    x = torch.randn(shape, generator=chance).to(dtype)
    labels = torch.randint(0, 6, (rows,), generator=chance)
    labels[torch.rand(rows, generator=chance) < case.ignored] = -100
    labels[int(torch.randint(rows, (1,), generator=chance))] = 1
    targets = torch.randn((rows, 6), generator=chance).to(dtype)
    mask = (torch.rand(rows, generator=chance) + 0.2).to(dtype)
    return x, labels, targets, mask
