"""`baechi bench host` prints what was measured."""

import json

import pytest
from typer.testing import CliRunner

from baechi.cli import app
from baechi.records import HostCosts


@pytest.mark.full
def test_host() -> None:
    """As a table beside the shipped figures, and with `--json` as the record has it."""
    shown = CliRunner().invoke(app, ["bench", "host", "--quick"])
    assert shown.exit_code == 0 and "layer call" in shown.stdout
    assert f"{HostCosts.usual().waiting_layer_s * 1e6:.1f}" in shown.stdout
    assert "programs, aot_eager" in shown.stdout and "times the loop" in shown.stdout
    done = CliRunner().invoke(app, ["bench", "host", "--quick", "--json"])
    assert done.exit_code == 0 and "waiting_layer_s" in json.loads(done.stdout)
    assert set(json.loads(done.stdout)["steps"]) == {"plain loop", "code", "programs, aot_eager"}


def test_others() -> None:
    """No name, or that of a bench outside of the wheel, is answered with what there is and how to run it."""
    for words, fault in ([], "say which bench"), (["steps"], "there is no bench 'steps'"):
        done = CliRunner().invoke(app, ["bench", *words])
        assert done.exit_code == 2
        assert fault in done.stderr and "`host`" in done.stderr and "python -m benches" in done.stderr
