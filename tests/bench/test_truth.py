"""The bench of predictions measures what it says."""

import json

from typer.testing import CliRunner

from baechi.bench.truth import Row, is_true, truth
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
    """Steps within 2 %; no peak above the predicted one, and in inference none more than 5 % below.

    In training a random plan has one that is 6 % below: docs/truth.md.
    """
    for r in truth(quick=True):
        assert abs(r.time_off) <= 0.02, r
        assert all(0 <= off for off in r.bytes_off), r
        assert r.mode != "inference" or is_true(r), r
        assert all(off <= 0.07 for off in r.bytes_off), r
