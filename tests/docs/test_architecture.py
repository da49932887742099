"""The pages that name files of the code name those that exist."""

import re
from pathlib import Path

import pytest
from docs.pages import PAGES, ROOT, name_of

PACKAGE = ROOT / "baechi"
NAMING = [
    page for page in PAGES if page.parent.name == "design" or page.stem in ("architecture", "code-tour")
]
NEW = ("place/placers/by_count.py", "backend/mine/devices.py")
"""What a reader is told to write."""


def rows(page: Path) -> list[list[str]]:
    """The cells of each row of a page's tables."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize("page", NAMING, ids=name_of)
def test_files(page: Path) -> None:
    """Each path of a file or folder is one of the package, or of the project."""
    if page.stem == "architecture":
        return
    for path in re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", page.read_text()):
        assert path in NEW or (PACKAGE / path).exists() or (ROOT / path).exists(), path


def test_packages() -> None:
    """Each folder of the package is a row, and the files to start at are in it."""
    listed = {}
    for room, _, start in [row for row in rows(ROOT / "docs/architecture.md") if row[0].startswith("`")]:
        folder = PACKAGE / room.strip("`")
        listed[folder] = start
        for file in re.findall(r"`([\w/.]+)`", start):
            assert (folder / file).exists(), f"{room}: {file}"
    folders = {file.parent for file in PACKAGE.rglob("*.py")} - {PACKAGE}
    spelled_out = {PACKAGE / "capture", PACKAGE / "report/html"}  # as their sub-rooms; with the report
    assert folders - {*listed} <= spelled_out, folders - {*listed}
