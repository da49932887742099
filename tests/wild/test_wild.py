"""Models of other libraries, if they are there: none wrong, none with an error that is not baechi's."""

from pathlib import Path

import pytest

from wild import site
from wild.libraries import LIBRARIES
from wild.runner import outcome, try_library
from wild.verdict import Kind

LIMIT_S = 60.0

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(site.missing()), reason=str(site.missing()))]


@pytest.mark.timeout(0)  # hours, all together
@pytest.mark.parametrize("command", ["run", "whole"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_library(library: str, command: str, tmp_path: Path) -> None:
    """Every model of the library, in all ways."""
    tried = try_library(library, tmp_path / "wild.jsonl", LIMIT_S, command=command)
    outcomes = {record["name"]: outcome(record) for record in tried}
    assert outcomes
    assert not {name: told for name, told in outcomes.items() if told[0] in (Kind.WRONG, Kind.ERROR)}
