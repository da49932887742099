"""Attributes of nodes and edges are declared once: names, types, units, defaults, checks, documentation."""

from dataclasses import FrozenInstanceError, fields
from itertools import chain
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from baechi.errors import RecordError
from baechi.records import LayerGraph
from baechi.records.attributes import AMOUNTS, AbstractAttributes
from baechi.records.edge_costs import EdgeCosts
from baechi.records.layer_costs import LayerCosts

from .attributes_in_code import RAW, keys, named, raw_accesses, trees, typed

ROWS: list[type[AbstractAttributes]] = [LayerCosts, EdgeCosts]
KNOWN = {field.name for row in ROWS for field in fields(row)}
OF_GRAPH = {
    "training",
    "accumulate",
    "outputs",
    "model",
    "uncounted",
    "backward_captured",
    "programs",
    "containers",
    "recompute",
    "graph",
    "nodes",
    "edges",
}
OF_SPLITS = {
    "cuts",
    "dimension",
    "function",
    "lengths",
    "number",
    "of",
    "place",
    "refused",
    "rows",
    "shape",
    "shapes",
    "sizes",
    "tied",
    "units",
}
"""Of attributes that are tables themselves: how a layer can be split, and what a shard is of it."""

FOR_PEOPLE = {"spread_s"}
GRAPHS = sorted((Path(__file__).parents[2] / "profiles" / "graphs").glob("*.json"))


@pytest.mark.parametrize("row", ROWS)
def test_every_field_has_type_unit_sentence_and_default(row: type[AbstractAttributes]) -> None:
    """Bytes and seconds say so in their names, and a missing amount is 0, or None where it is derived."""
    for field in fields(row):
        kind, unit, text = get_args(get_type_hints(row, include_extras=True)[field.name])
        assert (kind and unit and text[0].isupper()) or text[0] == "`", field.name
        assert text.endswith("."), field.name
        assert getattr(row, field.name) == field.default, field.name
        if field.name.endswith("_s"):
            assert unit == "s", field.name
        if unit in AMOUNTS:
            assert field.default in (0, None), field.name


def test_only_some_files_name_attributes_as_strings() -> None:
    """All others read them typed, so mypy knows that they are fields."""
    found = {path: [*raw_accesses(tree)] for path, tree in trees()}
    assert {path: lines for path, lines in found.items() if lines and path not in RAW} == {}
    assert {path for path, _ in trees()} >= RAW


def test_every_name_in_the_code_is_a_field() -> None:
    """Whatever the package reads or writes by name is declared."""
    for path, tree in trees():
        if path in RAW:
            assert {*keys(tree)} - KNOWN - OF_GRAPH - OF_SPLITS == set(), path
        assert {*named(tree)} - KNOWN == set(), path


def test_every_field_is_read() -> None:
    """No attribute is carried for nothing."""
    read = set(chain.from_iterable(chain(typed(tree), named(tree)) for _, tree in trees()))
    assert KNOWN - read == FOR_PEOPLE


def test_the_docstring_lists_every_field() -> None:
    """Name, unit, default and sentence of each attribute are in the docstring of the graph."""
    text = LayerGraph.__doc__ or ""
    for row in ROWS:
        for field in fields(row):
            _, unit, meaning = get_args(field.type)
            assert any(
                line.startswith(f"- `{field.name}` ({unit}") and line.endswith(f": {meaning}")
                for line in text.splitlines()
            ), field.name


def test_a_row_is_what_the_node_says_and_defaults() -> None:
    """None is as if missing; unknown attributes stay in the graph and change nothing."""
    graph = LayerGraph()
    graph.add_node("a", forward_s=2.0, param_bytes=None, colocate=None, mine="kept")
    graph.add_node("b", kind="glue", module="m", on_host=True)
    graph.add_edge("a", "b", bytes=4, tensor="0")
    assert graph.costs("a") == LayerCosts(forward_s=2.0)
    assert graph.costs("b") == LayerCosts(kind="glue", module="m", on_host=True)
    assert graph.edge_costs("a", "b") == EdgeCosts(bytes=4, tensor="0")
    assert dict(graph.placed_costs()) == {name: graph.costs(name) for name in graph}
    assert graph.nodes["a"]["mine"] == "kept"
    assert (graph.module_of("a"), graph.module_of("b")) == ("a", "m")
    assert graph.says("on_host") and not graph.says("pin")


def test_a_row_is_frozen_and_of_its_moment() -> None:
    """It is not written to, and does not follow what is written to the node later."""
    graph = LayerGraph()
    graph.add_node("a", param_bytes=4)
    costs = graph.costs("a")
    graph.nodes["a"]["param_bytes"] = 8
    assert (costs.param_bytes, graph.costs("a").param_bytes) == (4, 8)
    with pytest.raises(FrozenInstanceError):
        costs.param_bytes = 8  # type: ignore[misc]


def test_every_amount_is_checked() -> None:
    """Each is refused where it is negative, infinite or not a number; every fault is named."""
    for row, names in ((LayerCosts, LayerCosts.amounts()), (EdgeCosts, EdgeCosts.amounts())):
        for name in names:
            for wrong in (-1, float("inf"), float("nan"), "4"):
                said = {"key": {name: wrong}}
                ((key, path, what),) = row.faults(said.items())
                assert (key, path) == ("key", f".{name}") and what.startswith(
                    f"it is {wrong!r}, not a number"
                )
            assert list(row.faults({"key": {name: None, "other": -1}}.items())) == []
    graph = LayerGraph()
    graph.add_node("a", backward_s={"L4": -3.0}, kind="op")
    with pytest.raises(RecordError, match=r"backward_s\['L4'\] is -3\.0") as caught:
        graph.check()
    assert "a: kind is 'op', not one of layer, glue, input" in caught.value.faults


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_shipped_graphs_come_back_byte_for_byte(path: Path) -> None:
    """Reading a graph and writing it changes nothing, and all that it carries is declared."""
    graph = LayerGraph.load(path)
    assert graph.to_json() == path.read_text()
    said = [data for _, data in graph.nodes(data=True)] + [data for *_, data in graph.edges(data=True)]
    assert set().union(*said) <= KNOWN
