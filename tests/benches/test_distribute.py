"""The bench of `distribute` measures what it says."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benches.__main__ import app
from benches.distribute import Row


@pytest.mark.full
def test_json(tmp_path: Path) -> None:
    """`--json` writes what the table shows: stages that add up to the ratio."""
    done = CliRunner().invoke(app, ["distribute", "--quick", "--json", str(tmp_path / "out")])
    assert done.exit_code == 0
    rows = json.loads((tmp_path / "out").read_text())
    assert {row["aside"] for row in rows} == {False, True}
    for row in rows:
        parts_s = [row[f"{part}_s"] for part in ("run", "graph", "placers", "search", "assign")]
        assert min(parts_s) >= 0
        assert sum(parts_s) / row["plain_s"] == pytest.approx(row["ratio"])


def test_ratio() -> None:
    """Stages over a plain forward and backward."""
    assert Row("m", False, False, 3, 0.5, 1.0, 0.5, 0.25, 0.25, 0.0).ratio == 4
