"""report, simulate and compare as a user types them: what they print, write, and answer with."""

import json
from pathlib import Path

import pytest
from place.graphs import branches, chain, cluster_of
from records.pipeline.chains import equal_chain
from typer.testing import CliRunner, Result

from baechi import report
from baechi.cli import app
from baechi.records import Plan, Timeline
from baechi.report.facts import Facts
from baechi.simulate.pipeline import ordered


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two plans of one graph, one of another, and a step."""
    graph = branches(4, 2, training=True, model="Branches")
    everywhere = dict.fromkeys(graph.placed(), "d0")
    halves = {name: f"d{int(name[1]) // 2}" if name[0] == "b" else "d0" for name in graph.placed()}
    cluster = cluster_of(400, 300)
    Plan(graph, cluster, everywhere).save(tmp_path / "whole.json")
    plan = Plan(graph, cluster, halves)
    plan.save(tmp_path / "halves.json")
    plan.timeline.save(tmp_path / "step.json")
    other = chain(3)
    Plan(other, cluster_of(99), dict.fromkeys(other.placed(), "d0")).save(tmp_path / "chain.json")
    return tmp_path


def test_report(folder: Path) -> None:
    """Text, with a measured step beside it if there is one."""
    done = run("report", folder / "halves.json")
    assert done.exit_code == 0 and "why not faster?" in done.output and "As measured" not in done.output
    done = run("report", folder / "halves.json", "--measured", folder / "step.json")
    assert done.exit_code == 0 and "As measured" in done.output


def test_report_into_files(folder: Path) -> None:
    """A page, a picture, a trace and the facts, each where it was asked for, and no text."""
    files = [folder / name for name in ("r.html", "r.svg", "r.trace", "r.json")]
    asked = zip(("--html", "--svg", "--trace", "--json"), files, strict=True)
    done = run("report", folder / "halves.json", *[part for pair in asked for part in pair])
    assert done.exit_code == 0 and done.stdout == ""
    assert done.stderr.splitlines() == [f"wrote {file}" for file in files]
    assert files[0].read_text().startswith("<!doctype html>")
    plan = Plan.load(folder / "halves.json")
    assert files[1].read_text() == report.to_svg(plan)
    assert "traceEvents" in json.loads(files[2].read_text())
    assert json.loads(files[3].read_text()) == json.loads(Facts(plan).to_json())


def test_report_to_standard_output(folder: Path) -> None:
    """A dash is the standard output, so that other programs can read it."""
    done = run("report", folder / "halves.json", "--json", "-")
    assert json.loads(done.stdout)["baechi"] == "report" and done.stderr == ""


def test_report_on_a_pipeline(folder: Path) -> None:
    """Text, or a page and a trace; what is of plans only is refused."""
    file, page = folder / "pipeline.json", folder / "p.html"
    ordered(equal_chain(2), 4).save(file)
    done = run("report", file)
    assert done.exit_code == 0 and "Memory against time" in done.output and "one device" in done.output
    done = run("report", file, "--html", page, "--svg", folder / "p.svg", "--trace", folder / "p.trace")
    assert done.exit_code == 0 and done.stdout == ""
    assert page.read_text().startswith("<!doctype html>") and 'id="graph"' not in page.read_text()
    assert "Measured: " in run("report", file, "--measured", folder / "step.json").output
    done = run("report", file, "--json", folder / "p.json")
    assert done.exit_code == 2 and "--json is of plans" in done.stderr


def test_simulate(folder: Path) -> None:
    """Seconds, bytes and links; as JSON the timeline itself, which `report --measured` reads."""
    done = run("simulate", folder / "halves.json")
    assert done.exit_code == 0
    for words in ("Predicted step: ", "Time", "Memory, B", "d0>d1"):
        assert words in done.output
    done = run("simulate", folder / "halves.json", "--json")
    assert Timeline.from_json(done.stdout) == Plan.load(folder / "halves.json").timeline
    done = run("simulate", folder / "whole.json")
    assert "Nothing travels between devices." in done.output


def test_compare(folder: Path) -> None:
    """Which is faster, by how much, and what lies elsewhere."""
    done = run("compare", folder / "whole.json", folder / "halves.json")
    assert done.exit_code == 0
    for words in (
        "whole is faster than halves by 23 %",
        "20.00 s",
        "26.00 s",
        "What lies elsewhere: 4 layers",
    ):
        assert words in done.output.replace("\n", " ")
    body = json.loads(run("compare", folder / "whole.json", folder / "halves.json", "--json").stdout)
    assert (
        body["step_s"] == [20, 26] and body["moved"][0]["to"] == "d1" and body["names"] == ["whole", "halves"]
    )


@pytest.mark.parametrize("command", ["report", "simulate", "compare"])
def test_help_has_examples(command: str) -> None:
    """Each says how it is called."""
    done = run(command, "--help")
    assert done.exit_code == 0 and f"baechi {command} " in done.output.partition("Examples:")[2]


def test_wrong_files(folder: Path) -> None:
    """One sentence with the cure, and status 2: no file, another record, a cut or empty one, no folder."""
    plan = folder / "halves.json"
    (folder / "cut.json").write_text(plan.read_text()[:200])
    (folder / "old.json").write_text(plan.read_text().replace('"schema": 1', '"schema": 0'))
    (folder / "half.json").write_text('{"baechi": "plan", "schema": 1}')
    wrong = {
        ("report", folder / "none.json"): "no plan file",
        ("report", folder / "step.json"): "holds no baechi plan (found: 'timeline')",
        ("report", folder / "cut.json"): "is the file cut short?",
        ("report", folder / "old.json"): "this version reads 1",
        ("report", folder / "half.json"): "no whole baechi plan: it misses",
        ("report", folder): "is a directory",
        ("report", plan, "--measured", plan): "holds no baechi timeline",
        ("report", plan, "--html", folder / "no" / "where.html"): "no such file or directory",
        ("simulate", folder / "none.json"): "no plan file",
        ("compare", plan, folder / "none.json"): "no plan file",
    }
    for words, sentence in wrong.items():
        done = run(*words)
        said = done.stderr
        assert done.exit_code == 2 and said.startswith("error: ") and sentence in said, words
        assert "Traceback" not in done.output and done.stdout == ""


def test_debug(folder: Path) -> None:
    """With --debug the error itself comes out."""
    done = run("report", folder / "none.json", "--debug")
    assert isinstance(done.exception, FileNotFoundError)


def test_not_given() -> None:
    """A missing argument is the command line's own error."""
    done = run("compare", "one.json")
    assert done.exit_code == 2 and "Missing argument" in done.stderr


def test_report_places_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph's file, whatever it is called, and a function of a module; a pipeline however it is spaced."""
    chain(3).save(folder / "layers")
    ordered(equal_chain(2), 4).save(folder / "pipeline.json")
    compact = json.dumps(json.loads((folder / "pipeline.json").read_text()), separators=(",", ":"))
    (folder / "compact.json").write_text(compact)
    monkeypatch.syspath_prepend(folder)
    (folder / "a_module.py").write_text(
        "import torch\ndef made(): return torch.nn.Linear(3, 2), torch.ones(4, 3)\n"
    )
    for target in (folder / "layers", folder / "compact.json", "a_module:made"):
        done = run("report", target)
        assert done.exit_code == 0 and "limit" in done.stdout, (target, done.output)


def test_one_file_by_two_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be written twice; and names are printed, not obeyed."""
    monkeypatch.chdir(folder)
    (folder / "link").symlink_to("x")
    for other in ("./x", "link", folder / "x"):
        done = run("report", "halves.json", "--html", "x", "--trace", other)
        assert done.exit_code == 2 and "would be written twice" in done.stderr
    assert run("report", "halves.json", "--html", "a\x1b[2J").stderr == "wrote a\\x1b[2J\n"
