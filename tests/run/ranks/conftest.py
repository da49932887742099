"""Ranks that all tests of this folder share."""

from collections.abc import Iterator

import pytest
from run.ranks.processes import Ranks, ranks


@pytest.fixture(scope="session")
def two() -> Iterator[Ranks]:
    """Two processes; they stay together as long as no test makes them fail."""
    with ranks(2) as made:
        yield made


@pytest.fixture(scope="session")
def four() -> Iterator[Ranks]:
    """Four."""
    with ranks(4) as made:
        yield made
