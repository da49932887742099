"""Files that were changed at random are read and used, or refused by an error of ours: see `mutations`."""

from pathlib import Path

import pytest

from .mutations import wrong

CHUNK = 70


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("start", range(0, 28 * CHUNK + 40, CHUNK))
def test_any_file(start: int, tmp_path: Path) -> None:
    """No other error, nothing waited for, nothing that a terminal would obey, nothing written elsewhere."""
    folder = tmp_path / "inner"
    folder.mkdir()
    outcomes = {wrong(seed, folder) for seed in range(start, start + CHUNK)}
    assert outcomes <= {("read", ""), ("refused", "")}
