"""The bench of the placers measures what it says."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from baechi import zoo
from baechi.place.preference import EQUAL
from benches import quality, speed
from benches.__main__ import app
from benches.quality import Cell, Row


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(quality.quality(quick=True))


@pytest.mark.full
def test_every_model_by_every_placer(rows: list[Row]) -> None:
    """Each model on a roomy and a tight cluster, by each placer, accelerate's map included."""
    pytest.importorskip("accelerate")
    assert [row.model for row in rows] == [name for name in zoo.MODELS for _ in range(2)]
    assert all(list(row.cells) == [*quality.PLACERS, "accelerate", "auto"] for row in rows)


@pytest.mark.full
def test_one_device_where_it_holds_the_model(rows: list[Row]) -> None:
    """Roomy devices hold the model alone, tight ones do not; the note says why."""
    for row in rows:
        alone = row.cells["single"]
        assert (alone.step_s is None) == ("tight" in row.cluster)
        assert ("no device holds all layers" in alone.note) == ("tight" in row.cluster)


@pytest.mark.full
def test_auto_is_the_best(rows: list[Row]) -> None:
    """Nothing that auto tries is better by more than a hundredth, and it says what it took."""
    for row in rows:
        chosen_s = row.cells["auto"].step_s
        assert chosen_s is not None and row.choice.startswith((*quality.PLACERS, "whole modules"))
        tried = [row.cells[name].step_s for name in ("single", "m-topo", "m-etf", "m-sct", "chain")]
        assert all(step_s is None or step_s * EQUAL >= chosen_s for step_s in tried)


def test_cells() -> None:
    """Milliseconds; a star where the placer's own rule found no room; words where nothing fits."""
    assert str(Cell(0.01234)) == "12.3"
    assert str(Cell(0.01234, "found no room for x: placed by packing instead")) == "12.3*"
    assert str(Cell(None, "no device holds all layers")) == "does not fit"


def test_speed() -> None:
    """Both sizes and the wide graph on each cluster, timed by each placer; ratios of the sizes."""
    found = speed.speed(quick=True)
    sizes = [(row.devices, row.layers, row.width) for row in found]
    assert sizes == [(d, n, w) for d in (4, 8) for n, w in ((250, None), (1000, None), (200, 128))]
    assert all(set(row.place_s) == set(speed.PLACERS) for row in found)
    small, large = found[0].place_s["m-etf"], found[1].place_s["m-etf"]
    assert speed.ratios(found)[4]["m-etf"] == large / small


@pytest.mark.full
def test_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: list[Row]) -> None:
    """The command prints all as tables, as Markdown and as JSON."""
    monkeypatch.setattr(quality, "quality", lambda quick: iter(rows[:1]))
    monkeypatch.setattr(speed, "SMALL", 250)
    monkeypatch.setattr(speed, "LARGE", 1000)
    for form, wanted in (
        (["--json", str(tmp_path / "out")], "inception-v3"),
        (["--markdown"], "| inception-v3"),
    ):
        done = CliRunner().invoke(app, ["placers", "--quick", *form])
        assert done.exit_code == 0
        assert wanted in done.stdout and "4 times as many" in done.stdout
    body = json.loads((tmp_path / "out").read_text())
    assert set(body) == {"quality", "known", "speed", "ratios", "m-sct by transfers"}
    assert body["quality"][0]["cells"]["single"]["step_s"] == rows[0].cells["single"].step_s
