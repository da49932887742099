"""Combinations of choices: few, and none of what they promise is missing."""

import itertools

import pytest
from matrix import in_turn, pairs

AXES = [
    (("a", "b", "c"), (False, "host", "threads"), (1, 2, 3)),
    (("a", "b", "c", "d", "e"), (1, 2), (False, True), ("x", "y", "z")),
    (("a", "b"), (1, 2, 3)),
]


@pytest.mark.parametrize("axes", AXES)
def test_every_two_choices_meet(axes: tuple[tuple[object, ...], ...]) -> None:
    """In few rows: less than half of all, where there are more than two axes."""
    rows = pairs(*axes, full=False)
    for one, other in itertools.combinations(range(len(axes)), 2):
        met = {(row[one], row[other]) for row in rows}
        assert met == set(itertools.product(axes[one], axes[other]))
    every = list(itertools.product(*axes))
    assert len(rows) < len(every) / 2 or len(axes) == 2
    assert len(rows) == len(set(rows)) and set(rows) <= set(every)


@pytest.mark.parametrize("axes", AXES)
def test_every_choice_has_a_turn(axes: tuple[tuple[object, ...], ...]) -> None:
    rows = in_turn(*axes, full=False)
    assert len(rows) == max(map(len, axes))
    assert [set(column) for column in zip(*rows, strict=True)] == [set(axis) for axis in axes]


@pytest.mark.parametrize("chosen", [pairs, in_turn])
def test_the_full_matrix(chosen: object) -> None:
    """Every combination, once."""
    for axes in AXES:
        assert chosen(*axes, full=True) == list(itertools.product(*axes))  # type: ignore[operator]
