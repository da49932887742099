"""The bench of the runtime measures what it says."""

import json

from typer.testing import CliRunner

from baechi.bench.runtime import LAYERS, host_costs
from baechi.cli import app


def test_host_costs() -> None:
    """Each way runs: nothing waits in the first, many layers in the next two, none with hooks."""
    costs = {cost.name: cost for cost in host_costs(rounds=1)}
    waiting = [cost.waited for name, cost in costs.items() if ", waiting" in name]
    assert costs["baechi, nothing waits"].waited == 0
    assert len(waiting) == 2 and waiting[0] == waiting[1] > LAYERS // 4


def test_json() -> None:
    """`--json` prints what the table shows."""
    done = CliRunner().invoke(app, ["bench", "runtime", "--quick", "--json"])
    assert done.exit_code == 0
    assert {row["name"] for row in json.loads(done.stdout)} >= {"baechi, nothing waits"}
