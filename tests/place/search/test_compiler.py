"""What is compiled does as it says, kept for the next process or not."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import pytest

from baechi.place.search import compiler as module
from baechi.place.search.compiler import compiled, inlined
from baechi.place.search.stale import drop_stale


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has run once as Python is compiled."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)


def test_without_a_place_to_keep_it(hasty: None, caplog: pytest.LogCaptureFixture) -> None:
    """A function of no file cannot be kept: it is compiled all the same, and said once."""
    scope: dict[str, Callable[[int], int]] = {}
    exec("def double(number):\n    return 2 * number", scope)
    double = compiled(scope["double"])
    assert (double(20), double.is_at_hand) == (40, False)  # by Python
    assert (double(21), double.is_at_hand, double(22)) == (42, True, 44)  # by the compiler
    assert caplog.text.count("compiling the search") == 1


def test_little_is_not_compiled() -> None:
    """What takes Python no time stays Python: the compiler takes seconds."""
    double = compiled(lambda number: 2 * number)
    assert [double(number) for number in range(100)] == [2 * number for number in range(100)]
    assert not double.is_at_hand


def test_one_process_compiles(hasty: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process compiles, Python goes on; when it is done, this one may."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))  # else it is compiled already

    @compiled
    def triple(number: float) -> float:
        return 3 * number

    triple(1.0)
    with triple._turn():
        assert (triple(2.0), triple.is_at_hand) == (6, False)
    assert (triple(3.0), triple.is_at_hand) == (9, True)


def test_called_from_python_and_from_within(hasty: None) -> None:
    """A part of a compiled function is compiled there; Python that calls it runs it as it is written."""

    @inlined
    def double(number: float) -> float:
        return 2 * number

    @compiled
    def twice(number: float) -> float:
        return double(double(number))

    assert (twice(5.5), twice(5.5), twice.is_at_hand) == (22, 22, True)
    assert (double(5.5), double([1])) == (11, [1, 1])  # type: ignore[arg-type]


def test_a_cache_of_other_sources_is_dropped(tmp_path: Path) -> None:
    """One source changes, and nothing compiled is left; nothing changes, and all is."""
    sources, cached = tmp_path / "sources", tmp_path / "elsewhere"
    inside = sources / "inside"
    inside.mkdir(parents=True)
    for folder in (sources, inside):
        (folder / "code.py").write_text("one")

    def kept() -> int:
        files = [cached / f"code.f-1.py311.{end}" for end in ("nbi", "1.nbc")]
        for file in files if cached.exists() else ():
            file.touch()
        drop_stale(sources, cached)
        return sum([file.exists() for file in files])

    assert [kept(), kept(), kept()] == [0, 2, 2]
    (inside / "code.py").write_text("two")
    assert [kept(), kept()] == [0, 2]


SEARCH = """
import sys
if sys.argv[1] == "without":
    sys.modules["numba"] = None
from place.graphs import branches, cluster_of
import baechi
from baechi.place.search import rounds
from baechi.place.search import compiler
from baechi.records import Link

rounds.ESTIMATES, rounds.MOVES = 30, 30  # less of everything, with the compiler and without it
compiler.PATIENCE_S = 0.0
graph = branches(5, 4, training=True)
for number, name in enumerate(graph):  # layers of many lengths
    graph.nodes[name]["forward_s"] = 1 + number * 7 % 5
cluster = cluster_of(400, 400, link=Link(1.0, 1.0), speeds=(1, 0.7))
for _ in range(2):  # the second one says nothing more
    plan = baechi.place(graph, cluster)
print(plan.to_json())
"""


@pytest.mark.full
def test_without_the_compiler() -> None:
    """Where numba is not installed, the search finds the same plan, and says once what it lacks."""
    found = {}
    for how in ("with", "without"):
        found[how] = subprocess.run(
            [sys.executable, "-c", SEARCH, how],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert found["with"].stdout == found["without"].stdout and '"bands"' in found["with"].stdout
    assert "not installed" not in found["with"].stderr
    assert found["without"].stderr.count("pip install numba") == 1


def test_the_package_asks_for_no_compiler() -> None:
    """`pip install baechi` brings neither numba nor pins of the tests; the extra `search` brings it."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert not [name for name in project["dependencies"] if "numba" in name or "==" in name]
    assert any("numba" in name for name in project["optional-dependencies"]["search"])


def test_the_compiler_tries_less_hard_only_here(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the search is compiled, LLVM tries less hard; then as hard as the caller has it."""
    config: Any = numba.config
    usual, levels = config.OPT, []

    class Machine:
        signatures, stats = (), SimpleNamespace(cache_path=None)

        def __call__(self, number: int) -> int:
            levels.append(int(config.OPT))
            return number

    same = compiled(lambda number: int(number))
    monkeypatch.setattr(same, "_machine", Machine())
    assert (same(1), same(2)) == (1, 2)  # by Python, then by the compiler
    assert (levels, config.OPT) == ([1], usual) and int(usual) > 1
