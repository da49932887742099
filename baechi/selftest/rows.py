"""What a self test found: rows, a table of them, and JSON to send along with an issue."""

import json
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import torch
from rich import box
from rich.table import Table

from baechi import __version__
from baechi.records.cluster import Cluster
from baechi.units import format_bytes, format_seconds

Verdict = Literal["right", "WRONG", "refused", "FAILED", "told"]
"""`refused` is an error that has to come, `FAILED` one that must not; `told` is a figure without a limit."""

_BAD = ("WRONG", "FAILED")


@dataclass(frozen=True)
class Row:
    """One thing that was tried.

    Args:
        what: a model, or a pair of devices.
        mode: how it was run, or what was compared.
        verdict: what came of it.
        found: a difference or a figure; None if there is none.
        expected: the most that the difference may be, or the figure that was predicted; None: neither.
        unit: of both: `"of the largest"`, `"s"`, `"bytes"` or `"bytes/s"`.
        note: what an error says.
    """

    what: str
    mode: str
    verdict: Verdict
    found: float | None = None
    expected: float | None = None
    unit: str = ""
    note: str = ""

    def figures(self) -> tuple[str, str]:
        """What was found and what was expected, as a person reads them."""
        return self._figure(self.found), self._figure(self.expected)

    def _figure(self, figure: float | None) -> str:
        if figure is None:
            return ""
        if self.unit == "s":
            return format_seconds(figure)
        if self.unit.startswith("bytes"):
            return f"{format_bytes(round(figure))}{self.unit.removeprefix('bytes')}"
        return f"{figure:.1e}"


@dataclass(frozen=True)
class Found:
    """All rows, and of which devices they are.

    Args:
        cluster: the devices.
        rows: what was tried.
    """

    cluster: Cluster
    rows: Sequence[Row]

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong and nothing failed."""
        return not any(row.verdict in _BAD for row in self.rows)

    def table(self) -> Table:
        """A line for each row, and at the end how many of each verdict."""
        table = Table(box=box.SIMPLE_HEAD, caption_justify="left")
        for column in ("", "", "verdict"):
            table.add_column(column)
        for column in ("found", "limit or prediction"):
            table.add_column(column, justify="right")
        for row in self.rows:
            style = "bold red" if row.verdict in _BAD else None
            table.add_row(row.what, row.mode, row.verdict, *row.figures(), style=style)
        counts = Counter(row.verdict for row in self.rows)
        table.caption = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
        return table

    def to_json(self) -> str:
        """The rows, the devices and the versions."""
        packages = {}
        for name in ("torch", "numba", "numpy", "transformers"):
            try:
                packages[name] = version(name)
            except PackageNotFoundError:
                continue
        where = {"python": platform.python_version(), "system": platform.platform(), **packages}
        body: dict[str, Any] = {
            "baechi": "selftest",
            "version": __version__,
            "versions": where,
            "cuda": torch.version.cuda,
            "cluster": self.cluster.body(),
            "rows": [asdict(row) for row in self.rows],
        }
        return json.dumps(body, indent=1) + "\n"
