"""The self test on devices that torch keeps apart."""

from pathlib import Path

import pytest

from accelerator import ToyMachine
from baechi import Cluster
from baechi.selftest import selftest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured of the devices is kept for these tests only."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.full
def test_all_is_right(toy: ToyMachine) -> None:
    """Numbers are those of a plain loop on the host, and every pair of devices sends what it is given."""
    found = selftest(Cluster.discover())
    wrong = [row for row in found.rows if row.verdict not in ("right", "told", "refused")]
    assert found.is_right and not wrong, wrong
    assert any(row.mode == "copy" for row in found.rows)
