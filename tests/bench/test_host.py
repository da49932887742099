"""The bench of the host prints what was measured."""

import json

from typer.testing import CliRunner

from baechi.cli import app
from baechi.records import HostCosts


def test_host() -> None:
    """As a table beside the shipped figures, and with `--json` as the record has it."""
    shown = CliRunner().invoke(app, ["bench", "host", "--quick"])
    assert shown.exit_code == 0 and "layer call" in shown.stdout
    assert f"{HostCosts.usual().waiting_layer_s * 1e6:.1f}" in shown.stdout
    done = CliRunner().invoke(app, ["bench", "host", "--quick", "--json"])
    assert done.exit_code == 0 and "waiting_layer_s" in json.loads(done.stdout)
