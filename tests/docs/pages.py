"""The pages of the documentation, and the blocks of code in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def page(name: str) -> str:
    """The text of a page, by its path from the project's root."""
    return (ROOT / name).read_text()


def blocks(name: str, *languages: str) -> list[tuple[str, str]]:
    """Language and code of a page's blocks, in order."""
    which = "|".join(languages)
    return re.findall(rf"^```({which})\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)


def without_figures(text: str) -> str:
    """A text in which every number is a 0, and every stretch of blanks is one."""
    return re.sub(r"[\d.]*\d", "0", " ".join(text.split()))


def name_of(path: Path) -> str:
    """How a test names a page: by its path from the project's root."""
    return path.relative_to(ROOT).as_posix()
