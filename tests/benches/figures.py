"""What a bench gives: figures, for people and for programs."""

import json
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from io import StringIO
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from baechi.report import tables as report

_WIDE = 1000


@dataclass(frozen=True)
class Figures:
    """The figures of one run.

    Args:
        tables: for people.
        body: the same as JSON-able data.
    """

    tables: tuple[Table, ...]
    body: Any

    def shown(self) -> list[report.Table]:
        """The tables as reports have them: they fit a terminal."""
        found = []
        for table in self.tables:
            columns = [str(column.header) for column in table.columns]
            texts = [str(column.header) for column in table.columns if column.justify == "left"]
            rows = zip(*[[str(cell) for cell in column.cells] for column in table.columns], strict=True)
            found.append(report.Table(str(table.title or ""), tuple(columns), tuple(rows), tuple(texts)))
        return found

    def as_json(self) -> str:
        """The figures as JSON text."""
        return json.dumps(self.body, indent=1)

    def as_markdown(self) -> str:
        """The tables as Markdown."""
        text = StringIO()
        console = Console(file=text, width=_WIDE, color_system=None)
        for table in self.tables:
            shown = copy(table)
            shown.title, shown.box = None, box.MARKDOWN
            console.print(table.title, shown, highlight=False)
        return "\n".join([line.rstrip() for line in text.getvalue().splitlines()])


def table_of(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """An empty table.

    Args:
        title: what it shows.
        texts: columns of text, to the left.
        numbers: columns of numbers, behind them, to the right.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in texts:
        table.add_column(column)
    for column in numbers:
        table.add_column(column, justify="right")
    return table
