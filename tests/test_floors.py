"""Imports go down the floors, never up, and never between rooms of floor 3."""

import ast
from pathlib import Path

import networkx as nx
import pytest

import baechi
from baechi.records.doors import DOORS

PACKAGE = Path(baechi.__file__).parent
FLOORS = {
    "errors": 0,
    "uncollected": 0,
    "units": 0,
    "records": 1,
    "cost": 1.5,  # the emulated devices of `backend` follow the rules of `cost`
    "backend": 2,
    "order": 2,
    "zoo": 2,
    "capture": 3,
    "measure": 3,
    "place": 3,
    "simulate": 3,
    "run": 3,
    "report": 3,
    "planning": 4,
    "profiling": 4,
    "api": 4,
    "comparing": 4,
    "fitting": 4,
    "bench": 5,
    "demo": 5,
    "cli": 5,
    "__main__": 5,
    "__init__": 5,
}
FILES = sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    return ".".join(("baechi", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def room(module: str) -> str:
    return [*module.split("."), "__init__"][1]


def imports(path: Path) -> set[str]:
    """The modules of baechi that a file imports, wherever in it."""
    known = {dotted(file) for file in FILES}
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else str(node.module) for name in names}
    return {name for name in found if name.split(".")[0] == "baechi"}


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_imports_go_down(path: Path) -> None:
    """A file imports lower floors, or its own room; rooms of one floor leave each other alone."""
    here = room(dotted(path))
    for target in imports(path):
        there = room(target)
        if here in (
            "planning",
            "profiling",
            "api",
            "comparing",
            "fitting",
            "bench",
            "demo",
            "cli",
            "__main__",
            "__init__",
        ):
            assert FLOORS[there] <= FLOORS[here], f"{path} imports {target}"
        else:
            assert there == here or FLOORS[there] < FLOORS[here], f"{path} imports {target}"


def test_no_file_imports_in_a_circle() -> None:
    """The files can be put in an order in which each imports only earlier ones."""
    graph = nx.DiGraph((dotted(path), target) for path in FILES for target in imports(path))
    graph.remove_edges_from([edge for edge in graph.edges if edge[0] == "baechi"])
    graph.remove_nodes_from([name for name in ("baechi",) if name in graph])
    assert nx.is_directed_acyclic_graph(graph), nx.find_cycle(graph)


def test_doors_lead_somewhere() -> None:
    """The upward references of records are those of the table, and they exist."""
    from importlib import import_module

    assert all(hasattr(import_module(module), name) for module, name in DOORS.values())


NO_TORCH = ("records", "cost", "order", "place", "simulate", "planning", "errors", "uncollected", "units")


@pytest.mark.parametrize("name", NO_TORCH)
def test_no_torch_below(name: str) -> None:
    """Records, costs, placing and simulating need no torch."""
    files = [p for p in FILES if room(dotted(p)) == name]
    assert files
    for path in files:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        tops = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        tops |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not {top for top in tops if top.split(".")[0] == "torch"}, path


def test_no_file_says_cuda() -> None:
    """Torch's interface for accelerators of any type is asked, and no module of one type."""
    assert [dotted(path) for path in FILES if "torch.cuda" in path.read_text()] == []
