"""Each protection of the reordering protocol is needed: without it a check fails that holds with it."""

import gc
import re
from collections.abc import Iterator

import pytest
from run.protections import (
    caller_state,
    emulated_threads,
    entrances,
    failures,
    layers,
    needs,
    regions,
    skipped,
    threads,
    values,
)
from run.protections.protocol import Check, all_checks
from run.protections.rows import Row

FILLED_BY = (
    caller_state,
    emulated_threads,
    entrances,
    failures,
    layers,
    needs,
    regions,
    skipped,
    threads,
    values,
)
"""What these modules say of scenarios and checks, they say as they are imported."""

CHECKS = all_checks()


@pytest.fixture(autouse=True, scope="module")
def _thaw() -> Iterator[None]:
    """What the check froze is collected again after these tests."""
    yield
    gc.unfreeze()


REMOVED = [(check, row) for check in CHECKS for row in check.rows]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_nothing_is_wrong(check: Check) -> None:
    """As it is, the protocol gives the plain model's results, in the planned order, and leaves nothing."""
    found = check.find()
    assert not found, found


@pytest.mark.full
@pytest.mark.parametrize(
    ("check", "row"), REMOVED, ids=[f"{row.name}-{check.name}" for check, row in REMOVED]
)
def test_each_protection_is_needed(check: Check, row: Row) -> None:
    """Without one protection the same check finds what the table says."""
    with row.removed():
        found = check.find()
    assert any(re.match(row.shows, one) for one in found), found
