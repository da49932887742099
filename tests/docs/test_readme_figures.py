"""The steps that the README shows are rows of the page of benchmarks."""

import re

import pytest
from docs.pages import ROOT
from docs.test_architecture import rows

ONE, OURS = 4, slice(6, 11)
"""The columns of the page with the step of one device, and with our ways."""

SHOWN = [row for row in rows(ROOT / "README.md") if "A100" in row[1] or "RTX" in row[1]]


def milliseconds(cell: str) -> list[float]:
    found = re.findall(r"([\d.]+) (ms|s)\b", cell)
    return [float(figure) * (1000 if unit == "s" else 1) for figure, unit in found]


@pytest.mark.parametrize("row", SHOWN, ids=lambda row: row[0])
def test_rows(row: list[str]) -> None:
    """The same model and batch; both steps, but for what was rounded; what does not fit is said."""
    model = re.sub(r" (pairs|words)|, 12 layers", "", row[0])
    page = {cells[0]: cells for cells in rows(ROOT / "docs/benchmarks.md")[::-1] if len(cells) > 10}[model]
    ours = [float(re.sub(r"[,r*]| \(.*", "", cell)) for cell in page[OURS] if "*" not in cell and cell != "-"]
    one = float(re.sub(r"[,*]", "", page[ONE]))
    assert milliseconds(row[2]) == [pytest.approx(one, rel=0.005)]
    assert "same" in row[3] or milliseconds(row[3])[0] == pytest.approx(min(ours), rel=0.005)
    assert ("does not fit" in row[2]) == ("*" in page[ONE])
