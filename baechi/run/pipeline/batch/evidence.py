"""Which rule says what a number of each microbatch counts: the one that gives the number of the whole batch.

    the whole batch       loss 3.90
    in two parts          3.21, 5.80    by rows 4.51    by labels 3.90 ◀    summed 9.01

Rules that have not disagreed yet all stay, the likeliest first. When they first disagree, `asks` says so, and
the judge looks at the whole batch again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import torch

from baechi.run.pipeline.batch.candidates import is_usual, notable
from baechi.run.pipeline.batch.partition import Parted
from baechi.run.pipeline.batch.rounding import Rounding
from baechi.run.pipeline.batch.shares import ROWS, Rule, differ, shares_by

_NEAR = 2e-2
"""A rule that is so near to a number that couples rows weighs its parts, where the user accepts that."""


@dataclass(frozen=True)
class Figures:
    """A number of the whole batch, and of its parts.

    Args:
        whole: the whole batch's.
        parts: those of the parts.
    """

    whole: float
    parts: tuple[float, ...]

    @classmethod
    def of(cls, whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> "Figures":
        """Read them."""
        return cls(float(whole.detach()), tuple([float(part.detach()) for part in parts]))

    def by(self, shares: Sequence[float]) -> float:
        """The number of the parts together. What does not count may be no number: a mean over no labels."""
        return sum([share * each for share, each in zip(shares, self.parts, strict=True) if share])

    def leaves_out(self, shares: Sequence[float]) -> bool:
        """Whether a part that gives something counts nothing."""
        pairs = zip(shares, self.parts, strict=True)
        return any(not share and isfinite(each) and each != 0 for share, each in pairs)


class Evidence:
    """The rules for a number that nothing has spoken against yet.

    Attributes:
        against: the rules that a look has spoken against.
    """

    def __init__(self) -> None:
        self._settled: list[Rule] = []
        self._doubted: set[Rule] = set()
        self.against: set[Rule] = set()

    @property
    def is_settled(self) -> bool:
        """Whether other rules are no candidates any more."""
        return bool(self._settled)

    def rules(self, parts: Parted, candidates: Sequence[Rule]) -> list[Rule]:
        """The rules that may hold, the likeliest first; by rows if none is for this batch."""
        rules = self._settled or [rule for rule in candidates if rule not in self.against]
        return [rule for rule in rules if rule.is_for(parts)] or [ROWS]

    def asks(self, parts: Parted, rules: Sequence[Rule]) -> bool:
        """Whether rules that may hold disagree about a batch."""
        if len(rules) == 1:
            return False
        about = [rule for rule in notable(rules, parts) if rule not in self._doubted]
        first, *others = shares_by(rules, parts)
        pairs = zip(rules[1:], others, strict=True)
        return any(rule in about and differ(first, shares) for rule, shares in pairs)

    def keep(self, heard: "Heard") -> None:
        """Keep the rules that give the number of the whole batch from those of its parts."""
        self.against.update(heard.others)
        self._doubted.update(heard.fitting[1:])
        if ROWS not in heard.fitting:  # else labels that are yet to come may be ignored
            self._settled = list(heard.fitting)

    def accept(self, heard: "Heard") -> None:
        """The user accepts that parts give another number."""
        is_near = abs(heard.given - heard.whole) <= _NEAR * max(1.0, abs(heard.whole))
        self._settled = [heard.rule if is_near else ROWS]


@dataclass(frozen=True)
class Heard:
    """What a look tells of a number.

    Args:
        whole: the number of the whole batch.
        rule: the first rule that gives it, else the nearest one.
        given: the number by that rule.
        fitting: the rules that give it.
        others: the rules that do not.
        doubt: a usual rule that gives it as well, though parts count otherwise by it; None without one.
    """

    whole: float
    rule: Rule
    given: float
    fitting: tuple[Rule, ...]
    others: tuple[Rule, ...]
    doubt: Rule | None = None


def heard(parts: Parted, rules: Sequence[Rule], figures: Figures, rounding: Rounding) -> Heard:
    """Which rules give the number of the whole batch from those of its parts."""
    shares = shares_by(rules, parts)
    given = [figures.by(each) for each in shares]
    fair = [len(rules) == 1 or min(each) >= 0 for each in shares]  # amounts below zero are no weights
    errors = [
        abs(one - figures.whole) if is_fair and isfinite(one) and not figures.leaves_out(each) else inf
        for each, one, is_fair in zip(shares, given, fair, strict=True)
    ]
    scale = max([abs(figures.whole), *(abs(one) for one in figures.parts if isfinite(one))])
    least = min(errors)
    if not rounding.allows(least, scale):
        nearest = errors.index(least)
        return Heard(figures.whole, rules[nearest], given[nearest], (), tuple(rules))
    at_most = least + rounding.as_good(scale)
    fitting = [rule for rule, error in zip(rules, errors, strict=True) if error <= at_most]
    others = tuple(rule for rule in rules if rule not in fitting)
    first = rules.index(fitting[0])
    pairs = [(rule, each) for rule, each in zip(rules, shares, strict=True) if rule in fitting]
    doubt = next((rule for rule, each in pairs if is_usual(rule) and differ(each, shares[first])), None)
    return Heard(figures.whole, fitting[0], given[first], tuple(fitting), others, doubt)
