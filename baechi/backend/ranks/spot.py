"""Where a rank is: in which step, microbatch and layers; and what it waits for there."""

from dataclasses import dataclass

AFTER_ALL = 1 << 60
"""The number of what comes after all transfers of a step."""


@dataclass(frozen=True)
class Spot:
    """A place in the one order of all ranks.

    Args:
        step: the step; 0 before the first one.
        number: of the transfer that the rank came to last.
        microbatch: of what it does there; None if of none.
        layer: in words, which layers' forward or backward that is, or makes what is sent.
    """

    step: int = 0
    number: int = AFTER_ALL
    microbatch: int | None = None
    layer: str = ""


@dataclass(frozen=True)
class Answer:
    """What a rank says when it is asked what it does.

    Args:
        rank: who says it.
        host: its machine.
        spot: where it is; if it waits, where the one that it waits for has to come to.
        waits_for: the ranks of which it waits for one or several; none if it runs.
        waited_s: since when.
        line: the line of code that it runs.
    """

    rank: int
    host: str
    spot: Spot
    waits_for: tuple[int, ...]
    waited_s: float
    line: str
