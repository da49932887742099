"""Which combinations of choices a test runs: in the default tier each choice, in the full one each two.

The nightly tier runs every combination.
"""

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

Row = tuple[Any, ...]


def pairs(*axes: Sequence[Any]) -> list[Row]:
    """Combinations in which every two choices of different axes meet; the first of them have each choice.

    Args:
        axes: the choices of each.

    Returns:
        A choice of each axis, in the order of the axes; the same each time.
    """
    return [_chosen(axes, places) for places in _pairs(axes)]


def in_turn(*axes: Sequence[Any]) -> list[Row]:
    """Combinations in which every choice occurs: as many as the longest axis has; shorter ones begin anew.

    Args:
        axes: the choices of each.

    Returns:
        A choice of each axis, in the order of the axes.
    """
    return [tuple(axis[place % len(axis)] for axis in axes) for place in range(max(map(len, axes)))]


def pairs_by_tier(*axes: Sequence[Any]) -> list[Any]:
    """For `parametrize`: each choice once, then `pairs` in the full tier, and all in the nightly one.

    Args:
        axes: the choices of each.
    """
    few, rows = len(_covering(axes, 1)), pairs(*axes)
    others = _others(axes, _pairs(axes))
    return [*_marked(rows[:few]), *_marked(rows[few:], "full"), *_marked(others, "nightly")]


def in_turn_by_tier(*axes: Sequence[Any]) -> list[Any]:
    """For `parametrize`: `in_turn`, and every other combination in the nightly tier.

    Args:
        axes: the choices of each.
    """
    turns = [tuple(place % len(axis) for axis in axes) for place in range(max(map(len, axes)))]
    return [*_marked(in_turn(*axes)), *_marked(_others(axes, turns), "nightly")]


def examples(most: int) -> int:
    """How many examples a property is tried on: in the default tier a quarter.

    Args:
        most: how many in the later tiers.
    """
    return most if os.environ.get("BAECHI_TIER", "full") != "default" else most // 4


def named(value: Any) -> str:
    """How a choice is called in the name of a test.

    Args:
        value: something with a name, such as an architecture, or a plain value.
    """
    return str(getattr(value, "name", value))


def _pairs(axes: Sequence[Sequence[Any]]) -> list[tuple[int, ...]]:
    return _covering(axes, 2, _covering(axes, 1))


def _covering(
    axes: Sequence[Sequence[Any]], size: int, rows: Iterable[tuple[int, ...]] = ()
) -> list[tuple[int, ...]]:
    """Rows of places in which every so many choices of different axes meet; the first ones are given."""
    every, rows = _every(axes), list(rows)
    size = min(size, len(axes))

    def met(row: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(itertools.combinations(enumerate(row), size))

    unmet = set().union(*map(met, every)).difference(*map(met, rows))
    while unmet:
        rows.append(max(every, key=lambda row: len(met(row) & unmet)))
        unmet -= met(rows[-1])
    return rows


def _every(axes: Sequence[Sequence[Any]]) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(axis)) for axis in axes)))


def _others(axes: Sequence[Sequence[Any]], rows: Sequence[tuple[int, ...]]) -> list[Row]:
    known = set(rows)
    return [_chosen(axes, places) for places in _every(axes) if places not in known]


def _chosen(axes: Sequence[Sequence[Any]], places: tuple[int, ...]) -> Row:
    return tuple(axis[place] for axis, place in zip(axes, places, strict=True))


def _marked(rows: Iterable[Row], *tiers: str) -> list[Any]:
    return [pytest.param(*row, marks=[getattr(pytest.mark, tier) for tier in tiers]) for row in rows]
