"""What pages are made of: files, data for scripts, colours, figures, tables, put into `page.html`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from baechi.report.tables import Table
from baechi.report.words import plain, words_of

_HUES = (255, 55, 150, 335, 205, 95, 300, 25)
_GOLDEN_ANGLE = 137.5

Figure = tuple[str, str, str]
"""A figure's name, its value, and a note on it."""


def page(
    *,
    title: str,
    model: str,
    headline: str,
    readings: Iterable[tuple[str, str]],
    figures: Iterable[Figure],
    tables: Iterable[Table],
    legend: Mapping[str, str],
    style: str,
    memory: str,
    layers: str,
    data: object,
    scripts: Sequence[str],
) -> str:
    """A page: one text, that needs no other file and no network."""
    return Template(read("page.html")).substitute(
        title=_text(title),
        style=read("style.css") + style,
        model=_text(model),
        headline=_text(headline),
        memory=_text(memory),
        figures="".join(map(_figure, figures)),
        readings="".join([_reading(*one) for one in readings]),
        tables="".join(map(_table, tables)),
        legend="\n".join(
            [f'<span><i class="key {key}"></i>{escape(what)}</span>' for key, what in legend.items()]
        ),
        layers=layers,
        data=_for_script(data),
        script="\n".join(map(read, scripts)),
    )


def memory_explained(training: bool, *, ahead: bool) -> str:
    """What the pictures of memory show."""
    what = "What each device holds at each moment of the step, as high as its peak"
    if ahead:
        return (
            f"{what}, counted as torch's allocator does: memory is taken when the host issues a kernel, "
            "ahead of the spans above, and is free again at the next allocation after all streams are "
            f"through with it.{' The last step is the optimizer.' * training}"
        )
    return f"{what}.{' Weights stay; activations pile up in forward and go in backward.' * training}"


def read(name: str) -> str:
    """The text of a file of this room."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def colours(letter: str, hues: Sequence[int]) -> str:
    """A class for each hue; how light and strong it is depends on the theme."""
    lines = [f"  --hue-{letter}{number}: {hue};" for number, hue in enumerate(hues)]
    rules = [
        f".{letter}{n} {{ --device: oklch(var(--light) var(--chroma) var(--hue-{letter}{n})); }}"
        for n in range(len(hues))
    ]
    return "\n".join(["", ":root {", *lines, "}", *rules, ""])


def hues_of_devices(devices: int) -> list[int]:
    """Hues that are far apart, one a device."""
    return [_HUES[n] if n < len(_HUES) else round(n * _GOLDEN_ANGLE) % 360 for n in range(devices)]


def _for_script(data: object) -> str:
    """JSON that can stand in a script element: nothing in it ends the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _text(text: str) -> str:
    """Text for a page: figures stay with their units, names are at most a line long, all is escaped."""
    return escape(" ".join([plain(word).replace(" ", "\xa0") for word in words_of(text)]))


def _figure(figure: Figure) -> str:
    name, value, note = map(_text, figure)
    return f"<div><dt>{name}</dt><dd>{value} <small>{note}</small></dd></div>"


def _reading(why: str, rest: str) -> str:
    bold = f"<b>{_text(why)}</b> " if why else ""
    return f'<p class="reading">{bold}{_text(rest)}</p>'


def _table(table: Table) -> str:
    def row(cells: Iterable[str], tag: str) -> str:
        kinds = ["" if column in table.texts else ' class="figure"' for column in table.columns]
        parts = [f"<{tag}{kind}>{_text(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)]
        return f"<tr>{''.join(parts)}</tr>"

    drawn = ""
    if table.rows:
        head, body = row(table.columns, "th"), "".join(row(cells, "td") for cells in table.rows)
        drawn = f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'
    note = f"<p class='note'>{_text(table.note)}</p>" if table.note else ""
    return f"<section><h2>{_text(table.title)}</h2>{drawn}{note}</section>"
