"""The page's table: what was tried, and what came out."""

from collections import Counter
from pathlib import Path
from typing import Any

from wild.libraries import LIBRARIES
from wild.runner import outcome, read
from wild.verdict import Kind

_END = "<!-- up to here -->"

_COUNTED = (Kind.SAME, Kind.ROUNDING, Kind.REFUSED, Kind.WRONG, Kind.ERROR)
_TOLD = (Kind.WRONG, Kind.ERROR, Kind.REFUSED, Kind.SLOW)
_LONGEST = 220
"""So many characters of a note are shown."""


def write(out: Path, page: Path, of: str = "run") -> None:
    """Put the table of all records, and the list of what did not go well, between a page's two marks.

    Args:
        out: JSON lines, as the runner keeps them.
        page: the page.
        of: the command that kept them; each has marks of its own.
    """
    begin = f"<!-- written by `python -m wild table{'' if of == 'run' else f' --of {of}'}` -->"
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(_END)
    if not found:
        raise ValueError(f"{page} lacks the marks {begin} and {_END}: put them where the table is to be")
    lines = "\n".join([*_table(read(out)), "", *_list(read(out))])
    page.write_text(f"{before}{begin}\n\n{lines}\n\n{_END}{after}")


def _table(records: list[dict[str, Any]]) -> list[str]:
    heads = ("library", "version", "tried", *_COUNTED, "not counted")
    rows = [_row(library, [r for r in records if r["library"] == library]) for library in LIBRARIES]
    rows = [row for row in rows if row]
    total = ["all", "", *(str(sum(int(row[column]) for row in rows)) for column in range(2, len(heads)))]
    return [_line(heads), _line(["---", "---"] + ["--:"] * (len(heads) - 2)), *map(_line, [*rows, total])]


def _row(library: str, records: list[dict[str, Any]]) -> list[str]:
    """A library's row; nothing if nothing of it was tried."""
    if not records:
        return []
    counts = Counter(outcome(record)[0] for record in records)
    tried = sum(counts[kind] for kind in _COUNTED)
    numbers = [tried, *(counts[kind] for kind in _COUNTED), len(records) - tried]
    return [library, records[0]["version"], *map(str, numbers)]


def _line(cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _list(records: list[dict[str, Any]]) -> list[str]:
    """One line for each model that did not go well, with the reason."""
    lines = []
    for told in _TOLD:
        for record in records:
            kind, way, note = outcome(record)
            if kind is told:
                reason = note.replace("`", "'")[:_LONGEST]
                lines.append(f"- {kind}: {record['library']} {record['name']}, {way}: `{reason}`")
    return lines
