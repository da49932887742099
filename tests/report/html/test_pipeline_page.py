"""The page of a pipeline: what it says, and in a real browser what it draws."""

from typing import Any

import pytest
from records.pipeline.chains import equal_chain
from report.html.browsers import LIGHT, NEEDS_BROWSER

from baechi import report
from baechi.records.pipeline import Pipeline
from baechi.report.html.pipeline_data import pipeline_data
from baechi.simulate.pipeline import ordered

CONTRAST = (
    f"() => {{{LIGHT}"
    + """
  const labels = [...document.querySelectorAll("#timeline text.on, #timeline text.in")];
  return labels.map((label) => {
    const papers = [label, label.previousElementSibling].map((one) => light(getComputedStyle(one).fill));
    const [dark, bright] = papers.sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  });
}"""
)


def shown(microbatches: int = 4) -> Pipeline:
    """Two stages of 1 and 2 s."""
    return ordered(equal_chain(2), microbatches)


def test_data() -> None:
    """Each task stands in both pictures, in its microbatch's colour and in its device's."""
    pipeline = shown()
    data = pipeline_data(pipeline)
    computed = [span for span in pipeline.timeline.spans if span.kind == "compute"]
    by_device, by_microbatch = data["timelines"][0], data["lanes"][0]
    assert [span[10] for span in by_device["spans"] if not span[7]] == [f"m{s.microbatch}" for s in computed]
    assert [(span[0], span[11]) for span in by_microbatch["spans"]] == [
        (span.microbatch, span.where) for span in computed
    ]
    assert [row["name"] for row in by_microbatch["rows"]] == [f"microbatch {n}" for n in range(4)]


def test_what_a_span_waits_for() -> None:
    """The last of its microbatch that ended or arrived there; only inputs wait for none."""
    spans = pipeline_data(shown())["timelines"][0]["spans"]
    for span in spans:
        if span[9] >= 0:
            before = spans[span[9]]
            assert before[3] <= span[2] and before[11] == span[11]
        else:
            assert span[7].startswith("host>")


@NEEDS_BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [800, 1400])
def test_it_is_drawn(open_page: Any, scheme: str, width: int) -> None:
    """Both pictures and memory; labels can be read in all colours; nothing is wider than the window."""
    page = open_page(report.to_html(shown(12)), scheme, width)
    assert page.locator("#timeline svg").count() == 2
    assert page.locator("#memory svg .area").count() == 2
    assert {f"m{n}" for n in range(12)} <= set(
        page.locator("#timeline svg")
        .nth(0)
        .locator(".span")
        .evaluate_all("spans => spans.map((one) => [...one.classList].pop())")
    )
    contrasts = page.evaluate(CONTRAST)
    assert len(contrasts) > 12 and min(contrasts) >= 4.5
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@NEEDS_BROWSER
def test_pointing(open_page: Any) -> None:
    """The tip says the microbatch by device, and the device by microbatch."""
    page = open_page(report.to_html(shown()))

    def said(picture: int) -> str:
        box = page.locator("#timeline svg").nth(picture).locator(".span.forward").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        return str(page.locator("#tip").inner_text())

    assert "microbatch 0" in said(0) and "forward on cpu:0" in said(0)
    assert "forward of microbatch 0" in said(1) and "on cpu:0" in said(1)
