"""The page of a pipeline: what it says, and what its pictures are drawn from."""

import json
import re
from pathlib import Path
from typing import Any

from records.pipeline.chains import equal_chain
from typer.testing import CliRunner

from baechi import report
from baechi.cli import app
from baechi.simulate.pipeline import ordered

PIPELINE = ordered(equal_chain(2), 3, "1f1b")


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_span_for_each_stage_and_microbatch() -> None:
    """1F1B, two stages, three microbatches: twelve tasks. What a gap waits for is of its own microbatch."""
    text = report.pipeline_to_html(PIPELINE)
    data = data_of(text)
    (timeline,) = data["timelines"]
    labels = [data["names"][span[1]] for span in timeline["spans"]]
    computed = [label for label, span in zip(labels, timeline["spans"], strict=True) if not span[7]]
    assert len(computed) == 12
    assert {label.partition(" #")[2] for label in computed} == {"0", "1", "2"}
    waiting = [(label, span) for label, span in zip(labels, timeline["spans"], strict=True) if span[9] >= 0]
    for label, span in waiting:
        assert timeline["spans"][span[9]][3] <= span[2] + 1e-3
        assert labels[span[9]].partition(" #")[2] == label.partition(" #")[2]
    assert len(waiting) >= 9  # all but what begins
    assert '<body class="pipeline">' in text
    assert "3 <small>order 1f1b</small>" in text


def test_the_command_takes_a_pipelines_file(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.json"
    PIPELINE.save(file)
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    runner = CliRunner()
    assert "3 microbatches" in runner.invoke(app, ["report", str(file)]).output
    made = runner.invoke(app, ["report", str(file), "--html", str(page), "--trace", str(trace)])
    assert made.exit_code == 0
    assert page.read_text() == report.pipeline_to_html(PIPELINE)
    assert json.loads(trace.read_text())
    refused = runner.invoke(app, ["report", str(file), "--measured", str(file)])
    assert refused.exit_code and "not beside a pipeline" in refused.output
