"""What a person types: models and graphs; and one sentence for what is not there."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from baechi.cli import app
from baechi.cli.targets import graph_of, model_of, shipped
from baechi.errors import BaechiError

FILE = """
import torch

class Net(torch.nn.Linear):
    pass

def small():
    return Net(3, 2), torch.ones(4, 3)

def wrong():
    return 1

several = 3
"""


def test_a_file(tmp_path: Path) -> None:
    """A function of a file, whose classes find their module."""
    (tmp_path / "training_script.py").write_text(FILE)
    model, inputs = model_of(f"{tmp_path}/training_script.py:small")
    assert model(inputs).shape == (4, 2)
    assert type(model).__module__ == "training_script"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing", "'nothing' is no target: write path.py:function"),
        ("missing.py:f", "there is no file missing.py"),
        ("no.such.module:f", "there is no module 'no.such.module'"),
        ("json:nope", "json has no function 'nope': it has"),
        ("{file}:several", "has no function 'several': it has Net, small, wrong"),
        ("{file}:wrong", "wrong returned int: it has to return (model, inputs)"),
        ("zoo:vgg", "no model 'vgg' in the zoo: it has inception-v3, gnmt, transformer"),
    ],
)
def test_no_target(target: str, message: str, tmp_path: Path) -> None:
    """Each mistake has its sentence."""
    (tmp_path / "other_script.py").write_text(FILE)
    with pytest.raises(BaechiError) as raised:
        model_of(target.format(file=tmp_path / "other_script.py"))
    assert message in str(raised.value)


def test_the_zoo() -> None:
    """Full size, on meta: nothing is allocated."""
    model, inputs = model_of("zoo:transformer")
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert inputs[0].device.type == "meta"


@pytest.mark.parametrize("name", shipped("graph"))
def test_shipped_graphs(name: str) -> None:
    """They load, say where they come from, and know the usual kinds of device."""
    graph = graph_of(f"zoo:{name}")
    assert "estimated from datasheets; torch" in graph.graph["provenance"]
    layer = next(n for n in graph.placed() if graph.nodes[n].get("flops"))
    assert {"A100-80GB", "H100-80GB", "RTX-4090"} <= set(graph.nodes[layer]["forward_s"])


FAILING = """
import sys

def inner():
    raise KeyError("weights")

def outer():
    return inner()

def leaves():
    sys.exit("enough")
"""


@pytest.mark.parametrize(("name", "said"), [("outer", "KeyError: 'weights'"), ("leaves", "sys.exit(enough)")])
def test_a_function_that_fails_shows_its_own_lines(name: str, said: str, tmp_path: Path) -> None:
    """The frames of the user's code, and none of ours."""
    file = tmp_path / "failing_script.py"
    file.write_text(FAILING)
    done = CliRunner().invoke(app, ["profile", f"{file}:{name}", "-o", str(tmp_path / "graph.json")])
    assert done.exit_code == 2 and said in done.stderr.splitlines()[-1]
    assert f"in {name}" in done.stderr and done.stderr.count('File "') == done.stderr.count(f'File "{file}')
