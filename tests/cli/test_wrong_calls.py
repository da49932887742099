"""Wrong calls of the command line: each ends with one sentence that says what is wrong, and with status 2."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from place.graphs import chain, cluster_of
from typer.testing import CliRunner

from baechi.cli import app
from baechi.records import Plan

TARGETS = """
import sys
import torch
from torch import nn

def good():
    return nn.Linear(3, 2), torch.ones(4, 3)

def deeper():
    return {}["nothing"]

def raises(): raise ValueError("no such weights\\n\\x1b[31m")
def key(): return deeper()
def leaves(): sys.exit(3)
def pair(): return (1, 2)
def three(): return 1, 2, 3
def nothing(): pass
def inputs_are_a_set(): return nn.Linear(3, 2), {1}
def inputs_first(): return torch.ones(4, 3), nn.Linear(3, 2)
class Silent(Exception):
    def __str__(self): raise KeyError("no words")
def silent(): raise Silent
class Fails(nn.Module):
    def forward(self, x): raise Silent
def fails(): return Fails(), torch.ones(4, 3)
def needs(one): return one
def endless(): return endless()
def memory(): raise MemoryError
async def later(): return good()
def yields(): yield good()
def does_not_run(): return nn.Linear(3, 2), torch.ones(4, 7)
several = 3
class Model(nn.Module): pass
"""

GRAPH, PLAN = "zoo:gnmt", "plan.json"
PLACED = [
    "--cluster 9999999999xA100-80GB", "--cluster 0xA100-80GB", "--cluster -1xA100-80GB", "--cluster 1025xL4",
    "--cluster 600xL4,600xL4", "--cluster 4xA1000", "--cluster ,",
    "--cluster ''", "--cluster 2x", "--cluster x",
    "--cluster 1.5xL4", "--cluster nanxL4", "--cluster infxL4", "--cluster 2xL4,", "--cluster '2xL4 2xL4'",
    "--cluster nowhere.json", "--cluster .", "--cluster fifo", "--cluster /dev/zero", "--cluster empty.json",
    "--cluster plan.json", "--cluster deep.json", "--cluster twice.json", "--cluster digits.json",
    "--cluster cuda:7", "--cluster gpu", "--cluster '²xL4'", "--cluster '\x1b[2J'",
    "--cluster " + "9" * 5000 + "xL4",
    "--cluster " + "n" * 5000,
    "--placer best", "--placer ''", "--placer random:x", "--placer random:-1", "--placer m_etf", "--placer 3",
    "--optimizer adamant", "--optimizer ''", "--optimizer 5",
    "--effort -1", "--effort 1.5", "--effort nan", "--effort inf", "--effort ''", "--effort most",
    "--effort ²",
    "--effort 1000000000", "--effort " + "9" * 5000, "--effort 101",
    "--max-memory 0=1GiB,0=2GiB", "--max-memory 0=1GiB,device:0=2GiB", "--max-memory 0", "--max-memory =1GiB",
    "--max-memory 0=", "--max-memory ''", "--max-memory ,", "--max-memory 9=1GiB", "--max-memory -1=1GiB",
    "--max-memory 0=-1GiB", "--max-memory 0=nan", "--max-memory 0=inf", "--max-memory 0=1XB",
    "--max-memory 0=1e9",
    "--max-memory 0=0,1=0", "--max-memory cuda:0=1GiB", "--max-memory 0=" + "9" * 400 + "GiB",
    "--max-memory 0=" + "9" * 400 + ".5GiB", "--max-memory 0=" + "9" * 5000, "--max-memory ²=1GiB",
    "--max-memory '\x1b[2J=1GiB'", "--max-memory 0=1GiB,,1=1GiB",
    "--training --inference --optimizer adam", "--inference", "--inference --optimizer adam",
    "--outputs elsewhere", "--outputs ''", "--recompute ''", "--recompute ,", "--recompute nothing.like.it",
    "-o nowhere/plan.json", "-o .", "-o ''", "-o plan.json/plan.json", "-o " + "n" * 300, "--output",
    "-o fifo",
    "--nothing", "--json=3", "--cluster", "too many", "--training=yes", "--source guess",
]  # fmt: skip
MICROBATCHES = [
    "0", "-1", "1.5", "nan", "inf", "''", "many", "1000000000", "²", "9" * 5000, "100001", "5",
]  # fmt: skip
ENDS = [
    "nothing", "missing.py:f", "no.such.module:f", "json:nope", "targets.py:several", "targets.py:raises",
    "targets.py:key", "targets.py:leaves", "targets.py:pair", "targets.py:three", "targets.py:nothing",
    "targets.py:inputs_are_a_set", "targets.py:inputs_first", "targets.py:needs", "targets.py:endless",
    "targets.py:memory", "targets.py:later", "targets.py:yields", "targets.py:does_not_run",
    "targets.py:Model", "targets.py:silent", "targets.py:fails",
    "targets.py:", ":f", "targets.py", "targets.py:no:f", "fifo.py:f", "folder.py:f", "broken.py:f",
    "zeros.py:f",
    "needing.py:f", "leaving.py:f", "zoo:vgg", "zoo:", "..:f", ".x:f", "a..b:f", "-x:f", "'\x1b[2J:f'", "''",
    "targets.py:_nope", "os.path:join", "sys:exit", "n" * 5000 + ".py:f", "plan.json:f",
]  # fmt: skip
PLANS = [
    "nowhere.json", ".", "fifo", "/dev/zero", "/dev/null", "empty.json", "cut.json", "twice.json",
    "deep.json",
    "digits.json", "latin.json", "binary", "list.json", "graph.json", "strange.json", "''", "n" * 5000,
    "other.json",
]  # fmt: skip
ALL = [
    *[f"place {GRAPH} {words}" for words in PLACED],
    *[f"place targets.py:good --microbatches {words}" for words in MICROBATCHES],
    *[f"profile {target} -o out.json" for target in ENDS],
    *[f"simulate {name}" for name in PLANS],
    *[f"report {name}" for name in PLANS[:-1] if name != "graph.json"],  # it is placed
    *[f"report {PLAN} --measured {name}" for name in [*PLANS, PLAN]],
    *[f"compare {PLAN} {name}" for name in PLANS],
    *[f"report {PLAN} --{form} {where}" for form in ("html", "trace", "json") for where in ("nowhere/x",
    ".", "''")],
    f"report {PLAN} --html one --trace one", f"report {PLAN} --html", f"report {PLAN} --json - --html -",
    "profile zoo:gnmt", "profile", "place", "fits", "simulate", "report", "compare one.json",
    "links --cluster",
    "links -o nowhere/links.json", "clusters nowhere", "clusters 0xL4", "clusters 2xL4 2xL4", "nothing",
    "plac",
    "--nothing", "bench nothing", "bench", "bench host --models nothing", "bench host --quick 3",
    "demo now",
    "profile targets.py:good -o nowhere/graph.json", "profile targets.py:good -o .",
    "profile targets.py:good",
    "fits targets.py:raises", "fits targets.py:pair", "fits zoo:vgg", "fits zoo:gnmt --cluster 0xL4",
    "fits zoo:gnmt --optimizer adamant", "fits zoo:gnmt --max-memory 0=1,0=2", "fits zoo:gnmt --effort x",
    "fits deep.json", "fits fifo.json", "place strange.json", "place graph.json/x", "fits /dev/zero",
    "profile targets.py:good -o out.json --source guess", "profile targets.py:good -o out.json --outputs x",
    "profile targets.py:good -o out.json --cluster 0xL4",
]  # fmt: skip
CALLS = [call for start in range(7) for call in ALL[start::7]]
QUICK = len(ALL[::7])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the calls are made: targets, and files of all wrong kinds."""
    here = tmp_path_factory.mktemp("calls")
    graph = chain(3)
    plan = Plan(graph, cluster_of(99, 99), dict.fromkeys(graph.placed(), "d0"))
    plan.save(here / PLAN)
    graph.save(here / "graph.json")
    text, head = plan.to_json(), '{"baechi": "plan", "schema": 1, '
    strange = json.loads(graph.to_json())
    strange["nodes"][1][1]["weights"] = [5, "\x1b[2J"]
    texts = {
        "targets.py": TARGETS, "broken.py": "def f(:\n", "needing.py": "import no_such_package\n",
        "leaving.py": "raise SystemExit('enough')\n", "empty.json": "", "cut.json": text[:200],
        "list.json": "[1]",
        "twice.json": head + '"order": [], "order": []}',
        "digits.json": head + '"order": ' + "9" * 5000 + "}",
        "deep.json": head + '"order": ' + "[" * 100_000 + "]" * 100_000 + "}",
        "strange.json": json.dumps(strange),
        "other.json": text.replace('"plan"', '"plane"', 1),
    }  # fmt: skip
    for name, content in texts.items():
        (here / name).write_text(content)
    (here / "latin.json").write_bytes(b'{"baechi": "\xe9"}')
    (here / "binary").write_bytes(bytes(range(256)))
    (here / "zeros.py").write_bytes(bytes(10))
    (here / "folder.py").mkdir()
    for name in ("fifo", "fifo.py", "fifo.json"):
        os.mkfifo(here / name)
    before = Path.cwd()
    os.chdir(here)
    yield here
    os.chdir(before)


def judged(call: str, folder: Path) -> str:
    """What is wrong with what a call says; nothing if it is as it should be."""
    before = {path.name: path.lstat().st_mtime_ns for path in folder.iterdir() if path.name != "__pycache__"}
    done = CliRunner().invoke(app, shlex.split(call))
    after = {path.name: path.lstat().st_mtime_ns for path in folder.iterdir() if path.name != "__pycache__"}
    said = [
        line for line in done.stderr.splitlines() if not line.startswith(("Traceback of your code", "  "))
    ]
    if done.exit_code != 2:
        return f"status {done.exit_code}: {done.exception!r} {done.output[:200]}"
    if done.stdout or len(said) != 1 or not said[0].startswith("error: ") or len(said[0]) > 2100:
        return f"it says {done.stdout[:200]!r} {[line[:300] for line in said]}"
    if not done.stderr.replace("\n", "").isprintable() or "site-packages" in done.stderr:
        return f"it prints {done.stderr[:300]!r}"
    return "" if after == before else f"it leaves {after}"


@pytest.mark.default_cases(QUICK)
@pytest.mark.parametrize("call", CALLS)
def test_wrong_calls(call: str, folder: Path) -> None:
    """One sentence on the standard error, nothing on the standard output, nothing written."""
    assert not judged(call, folder)


@pytest.mark.full
def test_a_reader_that_has_enough(tmp_path: Path) -> None:
    """Ends the command as a closed pipe does, and not with the status of `fits` that says no."""
    script = tmp_path / "fitting.py"
    script.write_text(
        "import torch\ndef make():\n    print('made')\n    return torch.nn.Linear(3, 2), torch.ones(4, 3)\n"
    )
    command = [sys.executable, "-m", "baechi", "fits", f"{script}:make", "--json"]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        assert subprocess.run(command, stdout=closed, stderr=subprocess.DEVNULL).returncode == 141
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["fits"]  # what the target prints is no result


def test_a_forward_that_exits(tmp_path: Path) -> None:
    """Is a command that failed, whatever the status that it asks for."""
    script = tmp_path / "exiting.py"
    script.write_text(
        "import sys, torch\nclass Exits(torch.nn.Module):\n    def forward(self, x):\n        sys.exit(0)\n"
        "def make():\n    return torch.nn.Sequential(torch.nn.Linear(3, 2), Exits()), torch.ones(4, 3)\n"
    )
    done = CliRunner().invoke(app, ["fits", f"{script}:make"])
    assert done.exit_code == 2 and "called sys.exit(0)" in done.stderr


@pytest.mark.parametrize("target", ["silent", "fails"])
def test_an_error_that_cannot_be_printed(target: str, folder: Path) -> None:
    """Is named by its class."""
    call = f"fits targets.py:{target}"
    assert not judged(call, folder)
    assert "Silent" in CliRunner().invoke(app, shlex.split(call)).stderr


def test_nowhere_to_print() -> None:
    """A closed output is none, a full one is said, and a terminal without columns has some."""
    command = [sys.executable, "-m", "baechi"]
    for words, output, status, said in (
        ("clusters 2xL4", ">&-", 0, ""),
        ("clusters 2xL4", ">&- 2>&-", 0, ""),
        ("--version", ">/dev/full", 2, "error: the standard output cannot be written"),
    ):
        line = f"{shlex.join(command)} {words} {output}"
        done = subprocess.run(line, shell=True, capture_output=True, text=True)
        assert done.returncode == status and done.stderr.startswith(said), (line, done)
        assert len(done.stderr.splitlines()) == bool(said)
    done = subprocess.run(
        [*command, "clusters", "2xL4"], capture_output=True, text=True, env={**os.environ, "COLUMNS": "0"}
    )
    assert "cluster" in done.stdout


def test_a_wrong_file_of_a_long_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is refused before the test begins."""
    monkeypatch.setattr("baechi.selftest.selftest", lambda *args, **options: pytest.fail("it began"))
    done = CliRunner().invoke(app, ["selftest", "--json", str(tmp_path / "nowhere" / "x")])
    assert done.exit_code == 2 and "its folder is not there" in done.stderr
