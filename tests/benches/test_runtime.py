"""The bench of the runtime measures what it says."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benches.__main__ import app
from benches.runtime import LAYERS


@pytest.mark.full
def test_json(tmp_path: Path) -> None:
    """Each way runs: nothing waits in the first, many layers in the next two, none with hooks. `--json` has
    what the table shows."""
    done = CliRunner().invoke(app, ["runtime", "--quick", "--json", str(tmp_path / "out")])
    assert done.exit_code == 0
    waited = {row["name"]: row["waited"] for row in json.loads((tmp_path / "out").read_text())}
    waiting = [count for name, count in waited.items() if ", waiting" in name]
    assert waited["baechi, nothing waits"] == 0
    assert len(waiting) == 2 and waiting[0] == waiting[1] > LAYERS // 4
