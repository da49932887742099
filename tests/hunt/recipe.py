"""What a model is made from: plain data, of which any part may be left out."""

from collections.abc import Iterator
from dataclasses import dataclass

NUMBERS = 4
"""How many numbers a statement has. Each kind reads what it needs; 0 is the simplest choice."""


@dataclass(frozen=True)
class Statement:
    """A line of a model's code, or a few.

    Args:
        kind: which one, as registered in `statements`.
        numbers: its choices, each taken modulo what there is to choose from.
        body: the statements inside, where a kind has any.
    """

    kind: str
    numbers: tuple[int, ...] = (0,) * NUMBERS
    body: tuple["Statement", ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A model.

    Args:
        body: the statements of its `forward`.
        outputs: numbers that choose what it returns.
        seed: of its weights and inputs.
        rows: of its batch.
    """

    body: tuple[Statement, ...]
    outputs: tuple[int, ...] = (0,) * NUMBERS
    seed: int = 0
    rows: int = 3


def kinds_in(body: tuple[Statement, ...]) -> Iterator[str]:
    """The kinds of statements, at any depth.

    Args:
        body: the statements.
    """
    for statement in body:
        yield statement.kind
        yield from kinds_in(statement.body)
