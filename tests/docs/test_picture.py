"""The README's picture is what its script makes of today's plan."""

import runpy
from xml.etree import ElementTree

from docs.pages import ROOT

from baechi import report
from baechi.report.facts import Facts

MOST_BYTES = 60 * 1024


def test_the_picture_is_todays() -> None:
    """The same text, small, well formed, for light and dark; run `python docs/picture.py` where it is not."""
    script = runpy.run_path(str(ROOT / "docs/picture.py"))
    shown = (ROOT / "docs/report.svg").read_text(encoding="utf-8")
    plan = script["plan"]()
    assert shown == report.to_svg(plan)
    assert Facts(plan).verdict in ElementTree.fromstring(shown).attrib["aria-label"]
    assert len(shown) < MOST_BYTES and "prefers-color-scheme: dark" in shown
