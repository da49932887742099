"""The bench of `distribute` measures what it says."""

import json

import pytest
from typer.testing import CliRunner

from baechi.bench.distribute import Row
from baechi.cli import app


def test_json() -> None:
    """`--json` prints what the table shows: stages that add up to the ratio."""
    done = CliRunner().invoke(app, ["bench", "distribute", "--quick", "--json"])
    assert done.exit_code == 0
    rows = json.loads(done.stdout)
    assert {row["aside"] for row in rows} == {False, True}
    for row in rows:
        parts_s = [row[f"{part}_s"] for part in ("run", "graph", "placers", "search", "assign")]
        assert min(parts_s) >= 0
        assert sum(parts_s) / row["plain_s"] == pytest.approx(row["ratio"])


def test_ratio() -> None:
    """Stages over a plain forward and backward."""
    assert Row("m", False, False, 3, 0.5, 1.0, 0.5, 0.25, 0.25, 0.0).ratio == 4
