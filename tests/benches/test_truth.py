"""The bench of predictions measures what it says."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from baechi import Cluster
from benches.__main__ import app
from benches.models.runnable import runnables
from benches.predicted import Row, is_true
from benches.truth import profiled, row_of, truth


def row(step_s: float, peak_bytes: tuple[int, ...]) -> Row:
    """A row in which both predictions say the same."""
    said = (step_s, step_s, 100.0), (peak_bytes, peak_bytes, (1000, 0))
    return Row("model", "CPU", 2, "auto", "adam", *said[0], *said[1])


@pytest.mark.parametrize(("by", "step", "peak"), [("simulated", 5.0, 1150), ("dry", 0.5, 1010)])
def test_what_is_true(by: str, step: float, peak: int) -> None:
    """A step that is near, either way; no peak below the measured one, nor far above."""
    assert is_true(row(100 + step, (peak, 0)), by) and is_true(row(100 - step, (1000, 0)), by)
    assert not is_true(row(100.1 + step, (1000, 0)), by) and not is_true(row(99.9 - step, (1000, 0)), by)
    assert not is_true(row(100, (999, 0)), by) and not is_true(row(100, (peak + 1, 0)), by)
    assert row(100, (1050, 0)).dry.peaks == (1050 / 1000 - 1,)  # nothing said, nothing held


def test_what_was_said_of_an_empty_device() -> None:
    """A device that holds nothing, though it was said to, is off by any measure."""
    assert not is_true(row(100, (1000, 1)), "simulated")


def test_predictions_are_true(tmp_path: Path) -> None:
    """Dry runs are exact; the simulator is near. All clocks are logical: a second run says the same, and
    `--json` has each row of it, with what it is off by."""
    rows = list(truth(quick=True))
    for r in rows:
        assert is_true(r, "simulated") and is_true(r, "dry"), r
    assert len({(r.model, r.placer, r.mode) for r in rows}) == len(rows) >= 6
    done = CliRunner().invoke(app, ["truth", "--quick", "--json", str(tmp_path / "out")])
    assert done.exit_code == 0
    for r, body in zip(rows, json.loads((tmp_path / "out").read_text()), strict=True):
        assert body.items() >= json.loads(json.dumps(asdict(r))).items()
        assert body["dry"]["time"] == body["dry_s"] / body["measured_s"] - 1
        assert body["simulated"]["time"] == body["simulated_s"] / body["measured_s"] - 1


@pytest.mark.default_cases(2)
@pytest.mark.parametrize(
    ("model", "kind", "devices", "placer", "mode"),
    [
        ("gpt2", "CPU", 4, "random:1", "sgd"),  # a cache that outlives backward
        ("llama", "CPU", 4, "random:1", "sgd"),  # a gradient of an input that lies elsewhere
        ("llama", "CPU", 2, "random:1", "adam"),  # which thread is past what
        ("bart", "A100-80GB", 4, "auto", "inference"),  # variables go where the code is
        ("bart", "CPU", 4, "m-topo", "inference"),  # what comes back while a layer's kernels are issued
        ("transformer", "CPU", 2, "auto", "inference"),  # arguments, while what waited launches
        ("clip", "CPU", 4, "random:1", "sgd"),  # inputs that were kept for one layer
        ("vit", "CPU", 4, "random:1", "adam"),  # what is back when Adam begins
        ("gnmt", "CPU", 4, "random:1", "sgd"),  # parts of one gradient, with gaps
        ("mixtral", "CPU", 2, "m-etf", "inference"),  # taking by whole numbers
    ],
)
def test_what_once_was_off(model: str, kind: str, devices: int, placer: str, mode: str) -> None:
    """One row for each cause that was found."""
    runnable = next(one for one in runnables(quick=False) if one.name == model)
    graph = profiled(runnable, kind, mode != "inference")
    cluster = Cluster.virtual(devices, memory="64GiB", like=kind)
    found = row_of(runnable, graph, cluster, placer, mode)
    assert is_true(found, "simulated") and is_true(found, "dry"), found
