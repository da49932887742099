"""Make the README's picture of a report: `python docs/picture.py` writes `docs/report.svg`.

It shows a plan that is made here, of a shipped graph on datasheets.
"""

from pathlib import Path

import baechi
from baechi import report

FILE = Path(__file__).with_name("report.svg")


def plan() -> baechi.Plan:
    """Of Inception-v3 on two A100s, placed by `auto` without a search."""
    return baechi.place(
        baechi.LayerGraph.load("inception-v3"),
        baechi.Cluster.parse("2xA100-80GB"),
        optimizer="adam",
        effort=0,
    )


if __name__ == "__main__":
    FILE.write_text(report.to_svg(plan()), encoding="utf-8")
