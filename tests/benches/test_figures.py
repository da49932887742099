"""Figures as text."""

import json

from benches.figures import Figures, table_of


def test_forms() -> None:
    """Markdown shows the table in one piece under its title; JSON is the body."""
    table = table_of("What it shows", ("name",), ("number",))
    table.add_row("x" * 200, "7")
    figures = Figures((table,), {"rows": [7]})
    title, _, head, rule, row = figures.as_markdown().splitlines()[:5]
    assert title == "What it shows"
    assert [cell.strip() for cell in head.strip("|").split("|")] == ["name", "number"]
    assert set(rule) == {"|", "-"}
    assert [cell.strip() for cell in row.strip("|").split("|")] == ["x" * 200, "7"]
    assert json.loads(figures.as_json()) == {"rows": [7]}
