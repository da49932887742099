"""The pages of the documentation, and the blocks of code in them."""

import contextlib
import io
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

_FIGURE = re.compile(r"\d+\.\d+(?:e[+-]\d+)?|\d+")

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "examples/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def page(name: str) -> str:
    """The text of a page, by its path from the project's root."""
    return (ROOT / name).read_text()


def blocks(name: str, *languages: str) -> list[tuple[str, str]]:
    """Language and code of a page's blocks, in order."""
    which = "|".join(languages)
    return re.findall(rf"^```({which})\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)


def recipes() -> dict[str, str]:
    """By title, the programs of the guide that train: one below each heading of "In your training script"."""
    (text,) = re.findall(
        r"^## In your training script\n(.*?)(?=^## )", page("docs/guide.md"), re.DOTALL | re.MULTILINE
    )
    sections = re.findall(r"^### (.+?)\n(.*?)(?=^### |\Z)", text, re.DOTALL | re.MULTILINE)
    programs = {
        title: re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        for title, text in sections
    }
    assert all(len(found) == 1 for found in programs.values()), programs
    return {title: found[0] for title, found in programs.items()}


def printed_by(program: str, names: dict[str, Any]) -> str:
    """Run a program, and return what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, names)
    return printed.getvalue()


def name_of(path: Path) -> str:
    """How a test names a page: by its path from the project's root."""
    return path.relative_to(ROOT).as_posix()


def same_figures(shown: str, printed: str, within: float = 0.05) -> bool:
    """Whether two texts are the same but for blanks, for figures that are a little off, and for `...`.

    Args:
        shown: on a page; `...` stands for anything.
        printed: by its program.
        within: how far a figure may be off, relative to itself; or by one in its last digit.
    """
    parts = [_FIGURE.split(" ".join(part.split())) for part in shown.split("...")]
    pattern = ".*?".join([f"({_FIGURE.pattern})".join(map(re.escape, part)) for part in parts])
    found = re.fullmatch(pattern, " ".join(printed.split()))
    return found is not None and all(map(partial(_near, within), _FIGURE.findall(shown), found.groups()))


def _near(within: float, one: str, other: str) -> bool:
    digits = [10.0 ** -len(figure.partition(".")[2]) for figure in (one, other)]
    return abs(float(one) - float(other)) <= max(within * abs(float(one)), 1.001 * max(digits))


def check_figures(name: str, shown: str, printed: str) -> None:
    """Assert that a page shows what its program prints; with BAECHI_WRITE_DOCS=1, write it there instead.

    Args:
        name: the page, by its path from the project's root.
        shown: one of its blocks.
        printed: by the program above it.
    """
    printed = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    if os.environ.get("BAECHI_WRITE_DOCS") and not same_figures(shown, printed):
        (ROOT / name).write_text(page(name).replace(shown, printed))
        return
    assert same_figures(shown, printed), f"{name} shows\n{shown}\nand its program prints\n{printed}"
