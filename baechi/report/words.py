"""Text that stays readable whatever is in it: figures whole, long names cut in the middle, nothing obeyed.

A figure and its unit stay on one line. A name that is longer than a line keeps its beginning and its end.
What a terminal would obey (escapes, line breaks) is shown instead.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from baechi.errors import printable
from baechi.report.tables import Table

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_UNITS = {"%", "×", "x", "s", "ms", "µs", *_SIZES, *[f"{size}/s" for size in _SIZES]}
_FIGURE = re.compile(r"[(+-]*\d.*")
_NARROWEST = 24  # columns that a name is cut down to at least
_LONGEST = 24  # columns of a figure: what is longer and begins with a digit is a name
_LINE = 72
_WIDEST = 200
_BETWEEN = 2  # columns between two columns of a table


def shortened(text: str, width: int) -> str:
    """The text, cut in the middle if it is longer than a width: `model.lay…q_proj`."""
    if cell_len(text) <= width:
        return text
    head = _beginning(text, (width - 1) // 2)
    tail = _beginning(text[::-1], width - 1 - cell_len(head))[::-1]
    return f"{head}…{tail}"


def plain(text: str) -> str:
    """The text on one line, with no name that is longer than a line."""
    return " ".join([shortened(word, _LINE) for word in words_of(text)])


def lines_of(text: str, width: int) -> list[str]:
    """The text in lines, broken between words; a word that is longer than a line is cut in its middle."""
    lines = [""]
    for word in words_of(text):
        short = shortened(word, width)
        longer = f"{lines[-1]} {short}" if lines[-1] else short
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(short)
    return lines


@dataclass(frozen=True)
class Words:
    """Text for a `rich` console.

    Args:
        text: what it says.
        style: of `rich`.
    """

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in lines_of(self.text, options.max_width):
            yield Text(line, style=self.style, no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(*_widths([self.text])).with_maximum(options.max_width)


@dataclass(frozen=True)
class DrawnTable:
    """A table for a `rich` console, as wide as it has to be: figures are whole.

    What has no room beside the first column goes below, in a table of its own.

    Args:
        table: what is shown.
    """

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self.table
        yield Words(table.title, "bold")
        columns = list(zip(*table.rows, strict=True)) if table.rows else []
        ranges = [_widths([name, *cells]) for name, cells in zip(table.columns, columns, strict=False)]
        for part in _parts(ranges, options.max_width):
            widths = _shared([ranges[number] for number in part], options.max_width)
            drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
            for number, width in zip(part, widths, strict=True):
                name = table.columns[number]
                justify = "left" if name in table.texts else "right"
                drawn.add_column(Words(name), justify=justify, width=width)  # type: ignore[arg-type]
            for row in table.rows:
                drawn.add_row(*[Words(row[number]) for number in part])
            yield drawn
        if table.note:
            yield Words(table.note, "dim")
            yield ""


def facts_grid(rows: Sequence[tuple[str, str]]) -> RichTable:
    """What is said about some things, for a `rich` console: a thing a row."""
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    for thing, sentence in rows:
        grid.add_row(thing, Words(sentence))
    return grid


def _beginning(text: str, room: int) -> str:
    """As much of a text as fits."""
    taken, used = [], 0
    for one in text[: room + 1]:
        used += cell_len(one)
        if used > room:
            break
        taken.append(one)
    return "".join(taken)


def words_of(text: str) -> Iterator[str]:
    """The words of a text; a figure with its unit is one."""
    last = ""
    for word in printable(" ".join(text.split())).split(" "):
        unit = last[-1:].isdigit() and word.rstrip(").,;:") in _UNITS
        if _FIGURE.fullmatch(last) and (unit or last.endswith(" x")):  # `4.57 ms`, `4 x A100-40GB`
            last = f"{last} {word}"
            continue
        if last:
            yield last
        last = word
    yield last


def _widths(texts: Sequence[str]) -> tuple[int, int]:
    """The least columns that some texts need, and the most that they can use."""
    least = most = 1
    for text in texts:
        for word in words_of(text):
            long = cell_len(word)
            least = max(
                least, long if _FIGURE.fullmatch(word) and long <= _LONGEST else min(long, _NARROWEST)
            )
        most = max(most, min(_WIDEST, cell_len(text)))
    return least, max(least, most)


def _parts(ranges: Sequence[tuple[int, int]], room: int) -> list[list[int]]:
    """The columns in as many tables as are needed; each begins with the first column."""
    parts: list[list[int]] = []
    for number in range(len(ranges)):
        tried = [*parts[-1], number] if parts else [number]
        needed = sum([ranges[one][0] + _BETWEEN for one in tried])
        if parts and (needed <= room or tried == [0, number]):
            parts[-1] = tried
        else:
            parts.append([0, number] if number else [0])
    return parts


def _shared(ranges: Sequence[tuple[int, int]], room: int) -> list[int]:
    """The widths of a table's columns: each all that it can use, or the widest less, until there is room."""
    widths = [most for _, most in ranges]
    while sum(widths) + _BETWEEN * len(widths) > room:
        over = [width if width > least else 0 for width, (least, _) in zip(widths, ranges, strict=True)]
        if not any(over):
            break
        widths[over.index(max(over))] -= 1
    return widths
