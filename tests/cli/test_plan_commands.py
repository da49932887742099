"""The commands from a model to a plan, as somebody types them."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from baechi import __version__
from baechi.cli import app
from baechi.cli.graph_input import timed
from baechi.cli.targets import graph_of, shipped
from baechi.records import Cluster, LayerGraph, Plan
from baechi.records.pipeline import Pipeline
from baechi.records.replicas import Replicas

FILE = """
import torch
from torch import nn

def towers():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(4, 8)
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"})


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "towers_script.py"
    path.write_text(FILE)
    return f"{path}:towers"


def test_profile_place_and_read(script: str, tmp_path: Path) -> None:
    """A model becomes a graph's file, that a plan's file, and the plan a report."""
    graph, plan = str(tmp_path / "graph.json"), str(tmp_path / "plan.json")
    done = run("profile", script, "-o", graph, "--cluster", "2xL4", "--training")
    assert done.exit_code == 0, done.output
    assert "3 layers written to" in done.output
    assert LayerGraph.load(graph).training
    done = run("place", graph, "--cluster", "2xL4", "--optimizer", "adam", "-o", plan)
    assert done.exit_code == 0, done.output
    assert "Sequential, training" in done.output
    assert Plan.load(plan).graph.graph["optimizer"] == "adam"
    assert run("report", plan).exit_code == 0


def test_outputs_that_stay(script: str, tmp_path: Path) -> None:
    """A graph and a plan note it, and a graph's note can be overruled; another word is refused."""
    graph, plan = str(tmp_path / "graph.json"), str(tmp_path / "plan.json")
    for options, stay in (("--outputs", "device"), True), ((), False):
        done = run("profile", script, "-o", graph, "--cluster", "2xL4", *options)
        assert done.exit_code == 0, done.output
        assert LayerGraph.load(graph).outputs_stay == stay
    for outputs in ("device", "inputs"):
        for source in (graph, script):
            done = run("place", source, "--cluster", "2xL4", "--outputs", outputs, "-o", plan)
            assert done.exit_code == 0, done.output
            assert Plan.load(plan).graph.outputs_stay == (outputs == "device")
    done = run("place", graph, "--outputs", "host")
    assert done.exit_code != 0
    assert "outputs is 'host'" in done.output


def test_place_a_target(script: str) -> None:
    """A model is profiled on the way; JSON is a plan."""
    done = run("place", script, "--cluster", "2xL4", "--placer", "single", "--json")
    assert done.exit_code == 0, done.output
    assert len(Plan.from_json(done.stdout).device_of) == 3


def test_replicas(script: str, tmp_path: Path) -> None:
    """Several replicas of a pipeline: how many, why, and a file; a graph alone does not do."""
    file = tmp_path / "replicas.json"
    asked = ("place", script, "--cluster", "2x(2xL4)", "--microbatches", "2", "--replicas", "auto")
    done = run(*asked, "-o", str(file))
    assert done.exit_code == 0 and "4 replicas of 1 device each" in done.output, done.output
    assert len(Replicas.load(file).groups) == 4
    assert run(*asked[:-1], "2", "--json").output.startswith("{")
    for wrong, why in (
        (asked[:4] + asked[6:], "--microbatches 8"),
        ((*asked, "--placer", "m-etf"), "without --placer"),
        ((*asked[:-1], "many"), "--replicas many: it is a whole number"),
        ((*asked[:-1], "3"), "divide into 1, 2, 4 equal groups"),
        ((asked[0], "zoo:bert-large", *asked[2:]), "and zoo:bert-large is a graph"),
    ):
        done = run(*wrong)
        assert done.exit_code != 0 and why in done.output, done.output


def test_place_what_is_shipped() -> None:
    """By name, for devices that the shipped graph has no times for."""
    done = run("place", "zoo:gnmt", "--cluster", "2xL4", "--placer", "m-topo", "--json")
    assert done.exit_code == 0, done.output
    graph = Plan.from_json(done.stdout).graph
    assert all("L4" in graph.nodes[name]["forward_s"] for name in graph.placed())


def test_times_that_are_known_stay() -> None:
    """Only what is missing is estimated."""
    graph = graph_of("gnmt")
    name = next(graph.placed())
    graph.nodes[name]["forward_s"]["A100-80GB"] = 123.0
    timed(graph, Cluster.parse("1xA100-80GB,1xL4"))
    assert graph.nodes[name]["forward_s"]["A100-80GB"] == 123.0
    assert graph.nodes[name]["forward_s"]["L4"] < 123


def test_fits(script: str) -> None:
    """Yes is 0, no is 1; little memory, so that the largest batch is soon found."""
    limits = "--max-memory", "0=8MiB,1=8MiB"
    assert run("fits", script, "--cluster", "2xL4", "--optimizer", "adam", *limits).exit_code == 0


@pytest.mark.full
def test_fits_of_the_zoo() -> None:
    """A model of the zoo, at its usual batch."""
    done = run("fits", "zoo:gnmt", "--cluster", "1xRTX-4090", "--optimizer", "adam", "--json")
    answer = json.loads(done.stdout)
    assert done.exit_code == (0 if answer["fits"] else 1)
    assert answer["batch"] == 128


def test_clusters() -> None:
    """All that are shipped, or one."""
    done = run("clusters")
    assert done.exit_code == 0 and "desktop-4090-3090" in done.output and "Datasheets: A100" in done.output
    assert set(json.loads(run("clusters", "2xH100-80GB", "--json").stdout)) == {"2xH100-80GB"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("place", "nope"), "error: 'nope' is no target"),
        (("place", "nope", "--cluster", "2xTPU", "--effort", "much"), "error: 'nope' is no target"),
        (("fits", "zoo:nope", "--cluster", "2xTPU"), "error: no model 'nope' in the zoo"),
        (
            ("place", "zoo:gnmt", "--max-memory", "10GiB"),
            "error: --max-memory 10GiB: it is devices",
        ),
        (("place", "zoo:gnmt", "--max-memory", "9=1GiB"), "9 is no device"),
        (("place", "zoo:gnmt", "--inference"), "this graph has the memory of training"),
        (("fits", "zoo:gnmt", "--inference", "--optimizer", "adam"), "inference has no optimizer"),
        (("place", "missing.json"), "error: no graph file 'missing.json'; shipped graphs are: bert-large"),
        (("place", "zoo:gnmt", "--cluster", "2xTPU"), "error: cluster '2xTPU': no datasheet"),
        (("place", "zoo:gnmt", "--placer", "best"), "error: there is no placer 'best'"),
        (("place", "zoo:gnmt", "--effort", "much"), "error: --effort much: it is a whole number"),
        (("place", "zoo:gnmt", "--optimizer", "magic"), "magic"),
        (("report", "missing.json"), "missing.json"),
        (("links",), "error: no accelerator is visible"),
    ],
)
def test_errors(arguments: tuple[str, ...], message: str) -> None:
    """One sentence, exit code 2, and no traceback unless it is asked for."""
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert run(*arguments, "--debug").exception is not None


@pytest.mark.parametrize(
    "text",
    ["{", '{"baechi": "graph"', '{"baechi": "plan", "schema": 1}', '{"baechi": "graph", "schema": 99}'],
)
def test_broken_files(text: str, tmp_path: Path) -> None:
    """A file that is cut short, of another kind, or of another version."""
    path = tmp_path / "graph.json"
    path.write_text(text)
    done = run("place", str(path))
    assert done.exit_code == 2 and str(path) in done.stderr


def test_alone() -> None:
    """`baechi` shows its help, and `--version` the version; neither is an error."""
    assert run().exit_code == 0 and "Commands" in run().output
    done = run("--version")
    assert done.exit_code == 0 and done.output.strip() == __version__


def test_fits_takes_shipped_graphs() -> None:
    """From a graph it is known whether it fits, and no other batch."""
    done = run("fits", "zoo:bert-large", "--cluster", "1xL4", "--optimizer", "adam", "--json")
    answer = json.loads(done.stdout)
    assert done.exit_code == 1 and not answer["fits"] and answer["short_bytes"]["device:0"] > 0
    assert answer["batch"] is None and answer["largest_batch"] is None
    assert run("fits", "zoo:bert-large", "--cluster", "4xA100-80GB").exit_code == 0


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_no_name_is_cut_off(columns: int) -> None:
    """Whatever the terminal is like."""
    done = CliRunner().invoke(app, ["clusters"], env={"COLUMNS": str(columns)})
    assert all(f" {name} " in done.output for name in shipped("cluster"))


def test_limits(script: str) -> None:
    """`--max-memory` by index or name, as `max_memory=` in Python."""
    done = run("place", script, "--cluster", "2xL4", "--max-memory", "0=1GiB,device:1=0", "--json")
    devices = Plan.from_json(done.stdout).cluster.devices
    assert [(device.name, device.memory_bytes) for device in devices] == [("device:0", 2**30)]


def test_place_in_microbatches(tmp_path: Path) -> None:
    """`--microbatches` places the model for a pipelined step: text, JSON and a file; graphs are refused."""
    script = tmp_path / "tiny_pipeline.py"
    script.write_text(
        "import torch\n"
        "def make():\n"
        "    layers = [torch.nn.Linear(512, 512) for _ in range(8)]\n"
        "    return torch.nn.Sequential(*layers).train(), torch.ones(4, 512)\n"
    )
    common = ["place", f"{script}:make", "--cluster", "2xA100-80GB", "--effort", "0"]
    shown = CliRunner().invoke(app, [*common, "--microbatches", "4", "-o", str(tmp_path / "p.json")])
    assert shown.exit_code == 0, shown.output
    assert "in 4 microbatches on" in shown.output
    assert Pipeline.load(tmp_path / "p.json").microbatches == 4
    auto = CliRunner().invoke(app, [*common, "--microbatches", "auto", "--json"])
    assert Pipeline.from_json(auto.output).microbatches in (1, 2, 4)
    for wrong, fault in (("0", "at least 1, or auto"), ("many", "at least 1, or auto")):
        assert fault in CliRunner().invoke(app, [*common, "--microbatches", wrong]).output
    graph = ["place", "zoo:bert-large", "--microbatches", "4"]
    assert "needs the model" in CliRunner().invoke(app, graph).output


def test_what_runs_again(tmp_path: Path) -> None:
    """`--recompute` takes names or auto, for plans and pipelines."""
    script = tmp_path / "again_script.py"
    script.write_text(
        "import torch\n"
        "def make():\n"
        "    wide = [torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)]\n"
        "    narrow = [torch.nn.Linear(64, 64), torch.nn.GELU()]\n"
        "    layers = [torch.nn.Sequential(*part) for part in (wide, narrow)]\n"
        "    return torch.nn.Sequential(*layers).train(), torch.ones(512, 64)\n"
    )
    common = [f"{script}:make", "--cluster", "1xL4", "--effort", "0"]
    plan = Plan.from_json(run("place", *common, "--recompute", "0, 1", "--json").stdout)
    assert plan.recompute == ("0", "1")
    made = Pipeline.from_json(
        run("place", *common, "--recompute", "1", "--microbatches", "2", "--json").stdout
    )
    assert made.plan.recompute == ("1",)
    assert "names 'nothing'" in run("place", *common, "--recompute", "nothing").output


def test_env() -> None:
    """Versions as installed, what of torch is replaced, the variables that matter, and devices or why not."""
    found = json.loads(run("env", "--json").output)
    assert found["versions"]["baechi"] == __version__
    assert found["versions"]["torch"].startswith(torch.__version__)
    assert found["versions"]["networkx"] == version("networkx")
    assert "Function.apply" in found["torch's names"]["replaced while baechi runs"]
    done = CliRunner().invoke(app, ["env"], env={"BAECHI_REORDER": "0", "SECRET": "word"})
    assert "BAECHI_REORDER: 0" in done.output and "SECRET" not in done.output
    assert "accelerators: no accelerator" in done.output or "cuda:0" in done.output
