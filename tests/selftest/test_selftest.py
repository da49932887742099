"""The self test finds nothing wrong on emulated devices, and finds what is wrong there."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import baechi
from baechi.cli import app
from baechi.selftest import Row, selftest, trials
from baechi.selftest.subjects import subjects


def test_all_is_right_on_emulated_devices() -> None:
    """Ten models, four modes: all right, but for one that must be refused and one that has no witness."""
    found = selftest(baechi.Cluster.virtual(3))
    modes = {(row.what, row.mode) for row in found.rows if row.mode in trials.MODES}
    assert len(list(subjects())) == 10 and len(modes) == 10 * 4 - 1
    assert found.is_right, [row for row in found.rows if row.verdict not in ("right", "told")]
    assert [row.what for row in found.rows if row.verdict == "refused"] == ["pairs"]
    assert len([row for row in found.rows if row.mode == "copy"]) == 3 * 2
    told = [row for row in found.rows if row.verdict == "told"]
    assert len(told) == 4 and all(row.found == pytest.approx(row.expected, rel=0.02) for row in told)


def test_wrong_numbers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that trains a little otherwise is told from one that is right, and so is one that fails."""
    real = trials.distribute

    def off(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        made = real(model, *args, **kwargs)
        with torch.no_grad():
            next(model.parameters()).mul_(1 + 1e-6)
        if "split" in kwargs:
            raise RuntimeError("the device says so")
        return made

    monkeypatch.setattr(trials, "distribute", off)
    found = selftest(baechi.Cluster.virtual(2), quick=True)
    verdicts = {(row.what, row.mode): row.verdict for row in found.rows}
    assert not found.is_right
    assert verdicts["chain", "plain"] == verdicts["chain", "pipelined"] == "WRONG"
    assert verdicts["chain", "split"] == "FAILED" and verdicts["pairs", "pipelined"] == "refused"
    assert "the device says so" in next(row.note for row in found.rows if row.mode == "split")


def test_copies_that_arrive_changed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair is compared by what arrives at the host."""
    real = torch.equal
    monkeypatch.setattr(trials.torch, "equal", lambda a, b: len(a) < 2**20 and real(a, b))
    found = [row for row in trials._copies(baechi.Cluster.virtual(2))]
    assert [(row.what, row.verdict) for row in found] == [
        ("cpu:0 > cpu:1", "WRONG"),
        ("cpu:1 > cpu:0", "WRONG"),
    ]


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is printed, JSON is written, and the exit code says whether anything is wrong."""
    monkeypatch.setattr(trials, "subjects", lambda: list(subjects())[:1])
    path = tmp_path / "found.json"
    result = CliRunner().invoke(app, ["selftest", "--emulate", "2", "--json", str(path)])
    assert result.exit_code == 0 and "chain" in result.output and "right" in result.output
    body = json.loads(path.read_text())
    assert body["baechi"] == "selftest" and body["versions"]["torch"] and body["cluster"]["emulated"]
    rows = [Row(**row) for row in body["rows"]]
    assert {row.verdict for row in rows} == {"right", "told"}
    wrong = replace(
        selftest(baechi.Cluster.virtual(1), quick=True), rows=(replace(rows[0], verdict="WRONG"),)
    )
    monkeypatch.setattr("baechi.selftest.selftest", lambda *_, **__: wrong)
    assert CliRunner().invoke(app, ["selftest", "--emulate", "2"]).exit_code == 1
