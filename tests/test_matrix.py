"""Combinations of choices: few, and none of what they promise is missing."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from matrix import in_turn, in_turn_by_tier, pairs, pairs_by_tier

AXES = [
    (("a", "b", "c"), (False, "host", "threads"), (1, 2, 3)),
    (("a", "b", "c", "d", "e"), (1, 2), (False, True), ("x", "y", "z")),
    (("a", "b"), (1, 2, 3)),
]


@pytest.mark.parametrize("axes", AXES)
def test_every_two_choices_meet(axes: tuple[tuple[object, ...], ...]) -> None:
    """In few rows: less than half of all, where there are more than two axes."""
    rows = pairs(*axes)
    for one, other in itertools.combinations(range(len(axes)), 2):
        met = {(row[one], row[other]) for row in rows}
        assert met == set(itertools.product(axes[one], axes[other]))
    every = list(itertools.product(*axes))
    assert len(rows) < len(every) / 2 or len(axes) == 2
    assert len(rows) == len(set(rows)) and set(rows) <= set(every)


@pytest.mark.parametrize("axes", AXES)
def test_every_choice_has_a_turn(axes: tuple[tuple[object, ...], ...]) -> None:
    rows = in_turn(*axes)
    assert len(rows) == max(map(len, axes))
    assert [set(column) for column in zip(*rows, strict=True)] == [set(axis) for axis in axes]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize(("rows", "by_tier"), [(pairs, pairs_by_tier), (in_turn, in_turn_by_tier)])
def test_tiers(
    axes: tuple[tuple[object, ...], ...], rows: Callable[..., Any], by_tier: Callable[..., Any]
) -> None:
    """The default tier has each choice, the full one what it is to have, the nightly one all, each once."""
    found = by_tier(*axes)
    tiers = [[mark.name for mark in one.marks] for one in found]
    default = [one.values for one, tier in zip(found, tiers, strict=True) if not tier]
    full = [one.values for one, tier in zip(found, tiers, strict=True) if tier != ["nightly"]]
    assert len(default) == max(map(len, axes))
    assert [set(column) for column in zip(*default, strict=True)] == [set(axis) for axis in axes]
    assert full == rows(*axes)
    every = list(itertools.product(*axes))
    assert len(found) == len(every) and {one.values for one in found} == set(every)
