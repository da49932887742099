"""From what steps take of the host, and what they do how often, to seconds for each thing.

Least squares of relative errors, by non-negative costs. What the steps do not tell apart stays near a first
guess: each cost's relative distance from it counts as a small error, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import get_args

import torch

from baechi.records.device import HostCosts, HostWork

_WORK: tuple[HostWork, ...] = get_args(HostWork)
_PULL = 0.1
"""What a cost of twice its first guess counts, where a step that is predicted twice as long counts 1."""


@dataclass(frozen=True)
class Step:
    """A step that was timed and counted.

    Args:
        taken_s: what it takes of the host.
        counts: how often it does each thing.
    """

    taken_s: float
    counts: Mapping[HostWork, int]

    def predicted_s(self, costs: HostCosts) -> float:
        """What it takes by some costs."""
        return sum([times * costs.seconds(what) for what, times in self.counts.items()])


def fitted(steps: Sequence[Step], guess: HostCosts) -> HostCosts:
    """The costs that predict steps best."""
    speed = median([step.taken_s / step.predicted_s(guess) for step in steps])
    guess = guess.with_seconds({what: speed * seconds for what, seconds in guess.by_work().items()})
    known = [what for what in _WORK if guess.seconds(what) and any(step.counts.get(what) for step in steps)]
    left_s = [_without(step, known).predicted_s(guess) / step.taken_s for step in steps]
    # a cost counts in units of its first guess
    errors = [
        [step.counts.get(what, 0) * guess.seconds(what) / step.taken_s for what in known] for step in steps
    ]
    pull = _PULL * torch.eye(len(known), dtype=torch.float64)
    rows = torch.cat([torch.tensor(errors, dtype=torch.float64), pull])
    wanted = torch.cat([1 - torch.tensor(left_s, dtype=torch.float64), pull.diagonal()])
    times = _non_negative(rows, wanted).tolist()
    return guess.with_seconds({what: guess.seconds(what) * n for what, n in zip(known, times, strict=True)})


def _without(step: Step, known: Sequence[HostWork]) -> Step:
    return Step(step.taken_s, {what: times for what, times in step.counts.items() if what not in known})


def _non_negative(rows: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Least squares without negative values: the most negative ones become 0, one after the other."""
    kept = list(range(rows.shape[1]))
    while True:
        found = torch.linalg.lstsq(rows[:, kept], wanted.unsqueeze(1)).solution.squeeze(1)
        if found.min() >= 0:
            break
        kept.pop(int(found.argmin()))
    result = torch.zeros(rows.shape[1], dtype=torch.float64)
    result[kept] = found
    return result
