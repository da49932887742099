"""Imports go down the floors, never up, and never between rooms of floor 3."""

import ast
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import baechi
from baechi.records.lazy_imports import LAZY_IMPORTS

PACKAGE = Path(baechi.__file__).parent
FLOORS = {
    "errors": 0,
    "progress": 0.5,
    "gc_pause": 0,
    "units": 0,
    "torchlib": 1,
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
    "dispatch": 3.5,
    "verbs": 4,
    "demo": 5,
    "selftest": 5,
    "cli": 5,
    "split": 2,
    "__main__": 5,
    "__init__": 5,
}
MOST_LINES = 800
FILES = sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    return ".".join(("baechi", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {dotted(path) for path in FILES}
FACES = {dotted(path.parent / "__init__.py") for path in FILES}


def room(module: str) -> str:
    return [*module.split("."), "__init__"][1]


@cache
def imports(path: Path, *, types: bool = True) -> set[str]:
    """The modules of baechi that a file imports, wherever in it; with types, also those for type checkers."""
    tree, found = ast.parse(path.read_text()), set[str]()
    for node in list(ast.walk(tree)) if not types else ():
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}
    return {name for name in found if name.split(".")[0] == "baechi"}


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_imports_go_down(path: Path) -> None:
    """A file imports lower floors, or its own room; rooms of one floor do not meet below the top."""
    here = room(dotted(path))
    for target in imports(path):
        there = room(target)
        beside = there == here or FLOORS[here] == FLOORS[there] == 5
        assert beside or FLOORS[there] < FLOORS[here], f"{path} imports {target}"


def test_capturing_knows_no_devices() -> None:
    """What is captured depends on no backend."""
    files = [path for path in FILES if room(dotted(path)) == "capture"]
    assert files
    assert [dotted(path) for path in files for target in imports(path) if room(target) == "backend"] == []


def test_no_file_imports_in_a_circle() -> None:
    """The files can be put in an order in which each imports only earlier ones. Types may go round."""
    graph = nx.DiGraph((dotted(path), target) for path in FILES for target in imports(path, types=False))
    graph.remove_edges_from([edge for edge in graph.edges if edge[0] == "baechi"])
    graph.remove_nodes_from([name for name in ("baechi",) if name in graph])
    assert nx.is_directed_acyclic_graph(graph), nx.find_cycle(graph)


def folder(module: str) -> str:
    """A folder inside a room; a file that lies in the room itself, or the room's face, is one of its own."""
    parts = module.split(".")
    if module in FACES:
        return module
    return ".".join(parts[:-1]) if len(parts) > 3 else module


def test_no_folders_import_in_a_circle() -> None:
    """Folders inside of rooms, too, can be put in an order in which each imports only earlier ones."""
    graph = nx.DiGraph(
        (folder(dotted(path)), folder(target))
        for path in FILES
        for target in imports(path, types=False)
        if path.name != "__init__.py" and folder(dotted(path)) != folder(target)
    )
    assert nx.is_directed_acyclic_graph(graph), nx.find_cycle(graph)


def test_files_are_small() -> None:
    """A file is one concept, as long as the concept is; beyond this it holds two."""
    lines = {dotted(path): len(path.read_text().splitlines()) for path in FILES}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


@pytest.mark.parametrize("path", [path for path in FILES if path.name == "__init__.py"], ids=dotted)
def test_rooms_say_what_they_are(path: Path) -> None:
    """What goes in, what comes out, where to start reading."""
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    if dotted(path) not in ("baechi", "baechi.zoo"):
        assert [word for word in ("In: ", "Out: ", "Start: ") if word not in said] == []


def test_doors_lead_somewhere() -> None:
    """The upward references of records are those of the table, and they exist."""
    from importlib import import_module

    assert all(hasattr(import_module(module), name) for module, name in LAZY_IMPORTS.values())


NO_TORCH = (
    "records",
    "cost",
    "order",
    "place",
    "simulate",
    "verbs.plans",
    "dispatch.verb",
    "dispatch.schedulers",
    "errors",
    "progress",
    "gc_pause",
    "units",
)


@pytest.mark.parametrize("name", NO_TORCH)
def test_no_torch_below(name: str) -> None:
    """Records, costs, placing and simulating need no torch."""
    files = [p for p in FILES if f"{dotted(p)}.".startswith(f"baechi.{name}.")]
    assert files
    for path in files:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        tops = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        tops |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not {top for top in tops if top.split(".")[0] == "torch"}, path


def test_no_file_says_cuda() -> None:
    """Torch's interface for accelerators of any type is asked, and no module of one type."""
    assert [dotted(path) for path in FILES if "torch.cuda" in path.read_text()] == []
