"""What the package's code reads and writes on nodes and edges, found in its syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

import baechi

PACKAGE = Path(baechi.__file__).parent
RAW = {
    "records/graph.py",
    "capture/graph/draft.py",
    "capture/graph/draft_graph.py",
    "capture/graph/union.py",
    "measure/estimate.py",
    "measure/hooks.py",
    "measure/layers.py",
    "measure/scale.py",
    "verbs/fit.py",
    "cost/indexed_graph.py",
    "cost/recompute.py",
    "split/chains.py",
    "split/sharded_outputs.py",
    "cost/transfer.py",
    "split/costs.py",
    "split/functional.py",
    "split/groups.py",
    "split/notes.py",
    "split/rewrite.py",
    "cost/rows.py",
}
"""The files that name attributes as strings: they write them, or look at edges in an inner loop."""

TYPED = {"costs", "costs_of", "edge", "layers"}
"""How variables of typed attributes, and sequences of them, are called."""

_BY_NAME = {"amount", "total", "seconds", "says"}


def trees() -> Iterator[tuple[str, ast.Module]]:
    """The files of the package, by path, each with its syntax tree."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())


def raw_accesses(tree: ast.Module) -> Iterator[int]:
    """The lines that read attributes of nodes or edges from NetworkX itself."""
    for node in ast.walk(tree):
        of_graph = isinstance(node, (ast.Subscript, ast.Call)) and _is_view(
            node.value if isinstance(node, ast.Subscript) else node.func
        )
        with_data = isinstance(node, ast.Call) and any(word.arg == "data" for word in node.keywords)
        if of_graph and (with_data or isinstance(node, ast.Subscript)):
            yield node.lineno


def _is_view(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("nodes", "edges", "adj", "pred", "succ")


def keys(tree: ast.Module) -> Iterator[str]:
    """The strings that are keys in a file: in brackets, of `get` and the like, before `in`, of a dict."""
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.Subscript) and not _is_annotation(node):
            found = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("get", "pop", "setdefault"):
                found = list(node.args[:1])
            elif node.func.attr in ("add_node", "add_edge"):
                yield from (word.arg for word in node.keywords if word.arg)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            found = [node.left]
        elif isinstance(node, ast.Dict):
            found = list(node.keys)
        for key in found:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value


def _is_annotation(node: ast.Subscript) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id[:1].isupper()


def named(tree: ast.Module) -> Iterator[str]:
    """The attributes that are asked for by name: `graph.amount(node, "flops")`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _BY_NAME:
            for argument in node.args[:2]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def typed(tree: ast.Module) -> Iterator[str]:
    """The fields of typed attributes that are read: `costs.flops`, `graph.costs(node).flops`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            of = node.value
            if isinstance(of, ast.Subscript):  # indexed.costs[layer]
                of = of.value
            call = of.func if isinstance(of, ast.Call) else of
            name = call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "")
            if name in TYPED | {"edge_costs"}:
                yield node.attr
