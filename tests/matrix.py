"""Which combinations of choices a test runs: few that meet every two choices, or each choice once.

With `BAECHI_FULL=1` every combination runs.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any

FULL = bool(os.environ.get("BAECHI_FULL"))


def pairs(*axes: Sequence[Any], full: bool = FULL) -> list[tuple[Any, ...]]:
    """Combinations in which every two choices of different axes meet.

    Args:
        axes: the choices of each.
        full: whether every combination is wanted.

    Returns:
        A choice of each axis, in the order of the axes; the same each time.
    """
    every = list(itertools.product(*(range(len(axis)) for axis in axes)))
    rows = every if full else []
    unmet = set() if full else set().union(*map(_met, every))
    while unmet:
        rows.append(max(every, key=lambda row: len(_met(row) & unmet)))
        unmet -= _met(rows[-1])
    return [tuple(axis[place] for axis, place in zip(axes, row, strict=True)) for row in rows]


def in_turn(*axes: Sequence[Any], full: bool = FULL) -> list[tuple[Any, ...]]:
    """Combinations in which every choice occurs: as many as the longest axis has; shorter ones begin anew.

    Args:
        axes: the choices of each.
        full: whether every combination is wanted.

    Returns:
        A choice of each axis, in the order of the axes.
    """
    if full:
        return list(itertools.product(*axes))
    return [tuple(axis[place % len(axis)] for axis in axes) for place in range(max(map(len, axes)))]


def named(value: Any) -> str:
    """How a choice is called in the name of a test.

    Args:
        value: something with a name, such as an architecture, or a plain value.
    """
    return str(getattr(value, "name", value))


def _met(row: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    return set(itertools.combinations(enumerate(row), 2))
