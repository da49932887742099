"""The bench of the runtime measures what it says."""

import json

from typer.testing import CliRunner

from baechi.bench.runtime import LAYERS
from baechi.cli import app


def test_json() -> None:
    """Each way runs: nothing waits in the first, many layers in the next two, none with hooks. `--json` has
    what the table shows."""
    done = CliRunner().invoke(app, ["bench", "runtime", "--quick", "--json"])
    assert done.exit_code == 0
    waited = {row["name"]: row["waited"] for row in json.loads(done.stdout)}
    waiting = [count for name, count in waited.items() if ", waiting" in name]
    assert waited["baechi, nothing waits"] == 0
    assert len(waiting) == 2 and waiting[0] == waiting[1] > LAYERS // 4
