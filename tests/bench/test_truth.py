"""The bench of predictions measures what it says."""

import json

import pytest
from typer.testing import CliRunner

from baechi import Cluster
from baechi.bench.models.runnable import runnables
from baechi.bench.truth import Row, is_true, profiled, row_of, truth
from baechi.cli import app


def row(predicted_s: float, predicted_bytes: tuple[int, ...]) -> Row:
    return Row("model", "CPU", 2, "auto", "adam", predicted_s, 100.0, predicted_bytes, (1000, 0))


def test_what_is_true() -> None:
    """A step within 2 % either way; no peak above the predicted one, nor more than 5 % below."""
    assert is_true(row(102, (1050, 0))) and is_true(row(98, (1000, 0)))
    assert not is_true(row(102.1, (1000, 0))) and not is_true(row(97.9, (1000, 0)))
    assert not is_true(row(100, (999, 0))) and not is_true(row(100, (1051, 0)))
    assert row(100, (1050, 0)).bytes_off == (1050 / 1000 - 1,)  # nothing said, nothing held


def test_what_was_said_of_an_empty_device() -> None:
    """A device that holds nothing, though it was said to, is off by any measure."""
    assert not is_true(row(100, (1000, 1)))


def test_the_same_every_time() -> None:
    """Both clocks are logical: two runs give the same rows."""
    first, second = list(truth(quick=True)), list(truth(quick=True))
    assert first == second
    assert len({(r.model, r.placer, r.mode) for r in first}) == len(first) >= 6


def test_json() -> None:
    """`--json` has each row, with what it is off by."""
    done = CliRunner().invoke(app, ["bench", "truth", "--quick", "--json"])
    assert done.exit_code == 0
    for body in json.loads(done.stdout):
        assert body["time_off"] == body["predicted_s"] / body["measured_s"] - 1


def test_predictions_are_true() -> None:
    """Steps within 2 %; no peak above the predicted one, and none more than 5 % below."""
    for r in truth(quick=True):
        assert is_true(r), r


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
    assert is_true(found), found
