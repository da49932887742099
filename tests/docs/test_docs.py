"""What the documents show runs, and the links between them lead somewhere."""

import ast
import builtins
import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from docs.pages import PAGES, ROOT, blocks, check_figures, name_of, page, printed_by
from rich.console import Console

import baechi
from baechi import demo, zoo

YOURS = {"model", "batch", "loader", "dataset", "optimizer", "cluster", "loss_of"}
"""What a reader has, and pages need not explain."""

ALONE = ("README.md", "docs/index.md", "docs/guide.md", "docs/compiled.md", "docs/troubleshooting.md")
"""Pages of which one block is read without those above it."""

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_the_placer_of_the_docs_places() -> None:
    """The file that the page on placers shows is a placer that keeps pins; the line has its form."""
    file, line = (code for _, code in blocks("docs/placers.md", "python"))
    names: dict[str, Any] = {}
    exec(file, names)
    model, inputs = zoo.transformer("small")
    baechi.distribute(model, inputs, cluster=baechi.Cluster.virtual(3), placer=names["by_count"])
    assert len(baechi.plan_of(model).devices_used) == 3
    graph, cluster = baechi.LayerGraph.load("gnmt"), baechi.Cluster.parse("2xA100-80GB")
    first, *_ = graph.placed()
    graph.nodes[first]["pin"] = "device:1"
    assert baechi.place(graph, cluster, names["by_count"]).device_of[first] == "device:1"
    registry = (ROOT / "baechi/place/registry.py").read_text()
    assert re.search(r'^    "m-topo": m_topo,$', registry, re.MULTILINE)
    assert re.fullmatch(r'    "by-count": by_count,\n', line)


@pytest.mark.full
def test_examples_run() -> None:
    """Each example runs, prints what stands beside it (floats to two digits), and draws the picture there.

    They run in one process, since to import what they need takes longer than most of them.
    """
    pictures = {file: file.read_bytes() for file in (ROOT / "examples").glob("*.svg")}
    command = [sys.executable, str(Path(__file__).with_name("run_examples.py")), *map(str, EXAMPLES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shorten = re.compile(r"(\d\.\d\d)\d*")
    for path, printed in json.loads(done.stdout).items():
        expected = Path(path).with_suffix(".out").read_text()
        assert shorten.sub(r"\1", printed) == shorten.sub(r"\1", expected), path
    assert len(pictures) == 5 and pictures == {file: file.read_bytes() for file in pictures}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links(page: Path) -> None:
    """Links to files and headings of the project exist."""
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        file, _, heading = target.partition("#")
        linked = page.parent / file if file else page
        assert linked.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            assert heading in anchors, target


def test_the_index_lists_each_page() -> None:
    """By three groups, once each; there are at most twenty-two beside it, so that each is found."""
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    groups = re.findall(r"^:caption: (\w+)\n\n(.*?)```", page("docs/index.md"), re.DOTALL | re.MULTILINE)
    assert [name for name, _ in groups] == ["Start", "Use", "Understand"]
    assert sorted(" ".join(listed for _, listed in groups).split()) == sorted({*pages, "design/index"})
    assert len(pages) <= 22


def test_the_emulated_cluster_of_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    """The two programs of the page run; the second one is told of its race."""
    for _, program in blocks("docs/emulated-cluster.md", "python"):
        exec(program, {})
    assert "add_ on stream cpu:0/side writes memory that" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("name", ["pipeline", "split", "recompute", "dispatch"])
def test_pages_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of a page run one after the other, with nothing given."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for _, program in blocks(f"docs/{name}.md", "python"):
        printed_by(program, names)
    assert "baechi" in names


@pytest.mark.full
def test_the_reports_of_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    """What the page on reports shows is what its program prints."""
    names: dict[str, Any] = {}
    printed = []
    for _, program in blocks("docs/reports.md", "python"):
        exec(program, names)
        printed.append(capsys.readouterr().out)
    shown = [block for _, block in blocks("docs/reports.md", "text")]
    assert len(shown) == len(printed) == 2
    for block, output in zip(shown, printed, strict=True):
        check_figures("docs/reports.md", block, output)


def test_readme_snippets_are_python() -> None:
    """Every Python block of every page compiles."""
    for path in PAGES:
        for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
            compile(block if not block.startswith("    ") else f"x = {{\n{block}}}", str(path), "exec")


def unbound(code: str) -> set[str]:
    """The names that a program reads and neither makes, imports nor has of Python."""
    nodes = list(ast.walk(ast.parse(code)))
    named = [node for node in nodes if isinstance(node, ast.Name)]
    made = {node.id for node in named if not isinstance(node.ctx, ast.Load)}
    made |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    made |= {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            made |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return {node.id for node in named} - made - {*dir(builtins)}


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "CHANGELOG.md"], ids=name_of)
def test_blocks_import_what_they_use(path: Path) -> None:
    """Each name is made in the block (or above, where a page is read in order), or the page explains it."""
    name, above = name_of(path), ""
    for _, code in blocks(name, "python"):
        if code.startswith("    "):  # a line of a dict
            continue
        above = code if name in ALONE else above + code
        told = {word for word in unbound(above) if re.search(rf"`{word}[`([]", page(name))}
        assert unbound(above) - YOURS - told == set(), code


def test_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo trains on one device and over two, shows the plan, and finds the same losses."""
    monkeypatch.setattr(demo, "STEPS", 2)
    printed = StringIO()
    assert demo.run(Console(file=printed, width=120))
    text = printed.getvalue()
    for words in ("Plan by", "cpu:1", "The same losses", "times as fast", "report.html", "MiB short"):
        assert words in text


def test_python_dash_m() -> None:
    """`python -m baechi` is the command line."""
    done = subprocess.run(
        [sys.executable, "-m", "baechi", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == baechi.__version__
