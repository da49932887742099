"""The report says where layers lie, how full devices are, how long the step takes, what travels."""

import pytest
from typer.testing import CliRunner

import baechi
from baechi import report, zoo
from baechi.cli import app


def plan(n: int = 3) -> baechi.Plan:
    model, inputs = zoo.transformer("small")
    cluster = baechi.Cluster.virtual(n, memory="1MiB")
    return baechi.place(baechi.profile(model, inputs, cluster=cluster), cluster, "random:0")


def test_report_names_what_matters() -> None:
    """Model, devices, limits, placement, transfers and step are all there."""
    text = report.to_text(plan())
    for words in (
        "Transformer, training",
        "3 of 3 devices",
        "cpu:2",
        "1.00 MiB",
        "Cut edges",
        "Predicted step",
    ):
        assert words in text


def test_report_on_one_device() -> None:
    """One device: everything is there, nothing travels between devices but the inputs."""
    text = report.to_text(plan(1))
    assert "everything" in text and "1 of 1 devices" in text


def test_candidates_are_shown() -> None:
    """What `auto` tried is told with its predicted step."""
    model, inputs = zoo.transformer("small")
    cluster = baechi.Cluster.virtual(2)
    text = report.to_text(baechi.place(baechi.profile(model, inputs, cluster=cluster), cluster))
    assert "Tried" in text and "m-etf" in text and "auto (" in text


def test_command_line_reports(tmp_path: object) -> None:
    """`baechi report` prints the report of a plan's file, and one sentence where there is none."""
    plan().save(f"{tmp_path}/plan.json")
    done = CliRunner().invoke(app, ["report", f"{tmp_path}/plan.json"])
    assert done.exit_code == 0 and "Predicted step" in done.output
    for wrong in (f"{tmp_path}/none.json", __file__):
        done = CliRunner().invoke(app, ["report", wrong])
        assert done.exit_code == 2 and "Traceback" not in done.output


@pytest.mark.parametrize("size", [60, 200])
def test_any_width(size: int) -> None:
    """The report fits the width that it is given."""
    assert max(len(line) for line in report.to_text(plan(), width=size).splitlines()) <= size
