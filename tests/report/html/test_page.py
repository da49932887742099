"""The page as text: whole, alone, and safe whatever layers are called."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

from place.graphs import cluster_of
from report.html.odd import ODD, measured_step, odd_plan

from baechi import report
from baechi.records import Candidate, Link, Plan
from baechi.report.facts import Facts
from baechi.report.html.data import page_data


class _Page(HTMLParser):
    """Notes elements that are open, those that load something, and all text outside of scripts."""

    VOID = frozenset({"meta", "br", "hr", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data.replace("\xa0", " ")  # between a figure and its unit


def test_names_are_text() -> None:
    """A name that looks like markup is shown as it is, and ends neither an element nor the script."""
    plan = odd_plan()
    text = report.to_html(plan, measured_step(plan))
    page = _Page(text)
    assert page.open == [] and page.elements.count("script") == 2
    assert f"Model {ODD}".replace("\u2028", " ") in page.text
    assert "<script>alert" not in text


def test_it_loads_nothing() -> None:
    """No element names another file, no style does, and the page forbids it besides."""
    text = report.to_html(odd_plan())
    assert _Page(text).loads == []
    assert "url(http" not in text and "@import" not in text and "default-src 'none'" in text
    assert set(re.findall(r"https?://[^\"' ]*", text)) == {"http://www.w3.org/2000/svg"}


def test_data_survives() -> None:
    """What the scripts read is what was meant, whatever characters are in it."""
    plan = odd_plan()
    text = report.to_html(plan)
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    assert json.loads(found[1]) == json.loads(json.dumps(page_data(Facts(plan))))
    assert list(plan.graph) == json.loads(found[1])["names"][: len(plan.graph)]


def test_what_stands_without_scripts() -> None:
    """The reading, the figures and the tables are in the page itself."""
    plan = odd_plan()
    text = _Page(report.to_html(plan, measured_step(plan))).text
    facts = Facts(plan)
    for words in (
        facts.reading.why,
        facts.reading.fullest,
        "measured step",
        "Placement",
        "Cut edges",
        "forced",
    ):
        assert words in text
    assert "measured step" not in _Page(report.to_html(plan)).text


def test_the_header() -> None:
    """Against one device, the bound of all plans, whether fewer devices would do; in the text as well."""
    plan = odd_plan()
    facts = Facts(plan)
    assert facts.one_device is not None
    page, text = _Page(report.to_html(plan)).text, report.to_text(plan)
    speed = f"{facts.one_device.step_s / facts.step_s:.2f}"
    assert f"against one device{speed} ×" in page and f"{speed} times as fast as d0 alone" in text
    assert f"bound{facts.bound_s:.2f} s no plan on these devices is faster" in page
    assert f"No plan on these devices takes less than {facts.bound_s:.2f} s." in text
    whole = Plan(plan.graph, cluster_of(400, 400), plan.device_of)
    slow = cluster_of(400, 400, link=Link(latency_s=50.0))
    assert "as good with" not in _Page(report.to_html(whole)).text
    assert "as good with 1" in _Page(report.to_html(Plan(plan.graph, slow, plan.device_of))).text
    assert "no room" in _Page(report.to_html(Plan(plan.graph, cluster_of(100, 60), plan.device_of))).text


def test_the_terms_are_those_of_the_docs() -> None:
    """Functional ops; "glue" is only in names of nodes."""
    assert "glue" not in _Page(report.to_html(odd_plan())).text
    assert "functional ops" in report.to_text(odd_plan())


def test_no_list_twice() -> None:
    """Candidates that look alike are one row; a measured verdict like the predicted one is not repeated."""
    plan = odd_plan()
    twice = replace(
        plan, candidates=(Candidate("bands", 3.0), Candidate("bands", 3.0), Candidate("chain", 4.0))
    )
    page = _Page(report.to_html(twice, measured_step(plan))).text
    assert page.count("bands") == 1 and page.count(Facts(plan).reading.why) == 1
    assert "As measured: bound by the same." in page


def test_spans_and_rows() -> None:
    """Every span is in a row of its device, the critical ones are marked, rows of a device are together."""
    plan = odd_plan()
    (timeline,) = page_data(Facts(plan))["timelines"]
    assert len(timeline["spans"]) == len(plan.timeline.spans)
    assert sum(span[6] for span in timeline["spans"]) == len(Facts(plan).path)
    for drawn, span in zip(timeline["spans"], plan.timeline.spans, strict=True):
        row = timeline["rows"][drawn[0]]
        assert row["name"] == span.where.rpartition(">")[2]
        assert (row["what"] == "") == (span.kind == "compute")
        assert (drawn[2], drawn[3], drawn[5]) == (span.start_s * 1e6, span.end_s * 1e6, span.size_bytes)
    names = [row["name"] for row in timeline["rows"]]
    assert names == sorted(names)


def test_same_page_again() -> None:
    """The same plan gives the same page."""
    assert report.to_html(odd_plan()) == report.to_html(odd_plan())
