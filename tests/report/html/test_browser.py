"""The page in a real browser without a window: it draws, follows the pointer, folds, and loads nothing."""

import re
from itertools import pairwise
from typing import Any

import pytest
from place.graphs import cluster_of, graph_of
from report.html.browsers import LIGHT, NEEDS_BROWSER
from report.html.odd import ODD, measured_step, odd_plan

from baechi import report
from baechi.records import Plan

pytestmark = NEEDS_BROWSER

OVERLAPS = """() => {
  const drawn = [...document.querySelectorAll("#graph .node > .edge")];
  const boxes = drawn.map((box) => box.getBoundingClientRect());
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => meet(a, b))).length;
}"""

CONTRAST = (
    f"() => {{{LIGHT}"
    + """
  const style = (selector) => getComputedStyle(document.querySelector(selector));
  const pairs = [
    [style("h1").color, style("body").backgroundColor],
    [style(".headline").color, style("body").backgroundColor],
    [style("#graph .node text").fill, style("#graph .node .part").fill],
    [style("#graph .node text").fill, style("#graph .part.d0").fill],
    [style("#graph .node text").fill, style("#graph .part.d1").fill],
    [style("#timeline text.on").fill, style("#timeline .span.forward.d0").fill],
    [style("#timeline text.on").fill, style("#timeline .span.forward.d1").fill],
    [style("#timeline text.in").fill, style("#timeline .span.backward.d0").fill],
  ];
  return pairs.map(([ink, paper]) => {
    const [dark, bright] = [light(ink), light(paper)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  });
}"""
)


def many_blocks(blocks: int = 100) -> Plan:
    """A chain of blocks, one in ten of them cut."""
    parts = [f"model.blocks.{n}.{part}" for n in range(blocks) for part in ("norm", "inner", "outer")]
    graph = graph_of(
        {name: {"module": name, "forward_s": 1, "output_bytes": 1} for name in parts},
        [(parts[n], parts[n + 1], 1) for n in range(len(parts) - 1)],
        model="Blocks",
    )
    return Plan(graph, cluster_of(999, 999), {name: f"d{n // 31 % 2}" for n, name in enumerate(parts)})


def tip(page: Any) -> str:
    return str(page.locator("#tip").inner_text()) if page.locator("#tip").is_visible() else ""


def tip_covers(page: Any, selector: str) -> int:
    """How many of some pictures the lines about what is pointed at lie on, or leave the window."""
    return int(
        page.evaluate(
            """(selector) => {
              const tip = document.querySelector("#tip").getBoundingClientRect();
              const all = [...document.querySelectorAll(selector)];
              const boxes = all.map((one) => one.getBoundingClientRect());
              const meets = boxes.filter((one) => one.top < tip.bottom && tip.top < one.bottom);
              return meets.length + (tip.bottom - tip.top > 54 ? 1 : 0);
            }""",
            selector,
        )
    )


def hover(page: Any, selector: str, number: int = 0) -> str:
    """Point at the middle of an element; what the tip then says."""
    target = page.locator(selector).nth(number)
    target.scroll_into_view_if_needed()
    box = target.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    return tip(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_pictures_are_drawn(open_page: Any, scheme: str) -> None:
    """Both timelines, the memory of each device, the graph with all layers; and text can be read."""
    plan = odd_plan()
    page = open_page(report.to_html(plan, measured_step(plan)), scheme)
    assert page.locator("#timeline svg").count() == 2
    for kind in ("forward", "backward", "transfer", "critical"):
        assert page.locator(f"#timeline rect.{kind}").count() > 0, kind
    assert page.locator("#memory svg .area").count() == 2
    assert page.locator("#memory svg .measured").count() == 2
    names = page.locator("#graph .node").evaluate_all("nodes => nodes.map((node) => node.dataset.name)")
    assert sorted(names) == sorted(plan.graph)
    assert page.evaluate(OVERLAPS) == 0
    assert min(page.evaluate(CONTRAST)) >= 4.5


def test_hover(open_page: Any) -> None:
    """The tip says which layer, where, how long, and how many bytes; away from it all it is gone."""
    page = open_page(report.to_html(odd_plan()))
    said = hover(page, "#timeline rect.forward")
    assert said.startswith("fork") and "forward on d0" in said and "1.00 s, from 0.0 µs to 1.00 s" in said
    said = hover(page, "#timeline rect.transfer.d1")
    assert said.startswith("fork") and "transfer, forward on d0>d1" in said and "3 B" in said
    said = hover(page, "#memory .area")
    assert re.search(r"^d0: \d+ B at .*\nlimit 400 B", said)
    assert tip_covers(page, "#memory svg") == 0
    said = hover(page, "#graph .node")
    assert said.startswith("fork") and "forward 1.00 s, backward 1.00 s" in said and "weights 5 B" in said
    assert page.locator("#graph .link.near").count() == 4
    page.mouse.move(2, 2)
    assert tip(page) == "" and page.locator("#graph .link.near").count() == 0


def gaps() -> Plan:
    """Four layers, one after the other, on two devices in turn; a transfer takes four seconds."""
    nodes = {f"l{n}": {"forward_s": 3, "output_bytes": 4} for n in range(4)}
    graph = graph_of(nodes, [(f"l{n}", f"l{n + 1}", 4) for n in range(3)])
    return Plan(graph, cluster_of(99, 10**9), {f"l{n}": f"d{n % 2}" for n in range(4)})


@pytest.mark.full
def test_a_gap_says_what_it_waits_for(open_page: Any) -> None:
    """While a row is idle: the next span, what that waits for, until when; the waited-for span is framed."""
    page = open_page(report.to_html(gaps()))
    box = page.locator("#timeline svg").bounding_box()
    end = page.evaluate("view.to")

    def at(second: float, row: int) -> str:
        """What is said of a row at a second."""
        x = 128 + (box["width"] - 128) * second * 1e6 / end
        middle = page.evaluate(
            f"document.querySelectorAll('#timeline .row')[{row}].getBoundingClientRect().top + 5"
        )
        page.mouse.move(box["x"] + x, middle)
        return tip(page)

    assert at(5, 0).split("\n") == [
        "d0",
        "idle at 5.00 s",
        "l2 is next, in 9.00 s",
        "it waits for l1 (d1>d0, forward), which ends at 14.00 s",
    ]
    frame = page.locator("#timeline .found").bounding_box()
    arriving = page.locator("#timeline rect.transfer.d0").bounding_box()
    assert frame["x"] == pytest.approx(arriving["x"], abs=2) and frame["y"] == pytest.approx(
        arriving["y"], abs=2
    )
    assert "it waits for l0 (d0>d1, forward), which ends at 7.00 s" in at(2, 2)
    assert at(20, 0).endswith("nothing more runs here in this step")
    assert tip_covers(page, "#timeline svg") == 0


@pytest.mark.full
def test_memory_is_as_high_as_what_is_there(open_page: Any) -> None:
    """A device far below its limit is drawn large, with the limit as a word; a full one with its line."""
    page = open_page(report.to_html(gaps()))
    assert page.locator("#memory svg .above").all_text_contents() == ["limit 99 B ↑", "limit 953.67 MiB ↑"]
    heights = page.evaluate(
        "[...document.querySelectorAll('#memory .area')].map((one) => one.getBBox().height)"
    )
    assert min(heights) > 50
    plan = odd_plan()
    peaks = plan.timeline.peak_bytes
    full = cluster_of(peaks["d0"] + 9, 2 * peaks["d1"])
    page = open_page(report.to_html(Plan(plan.graph, full, plan.device_of)))
    assert page.locator("#memory svg line.limit").count() == page.locator("#memory svg .above").count() == 1


@pytest.mark.full
def test_search(open_page: Any) -> None:
    """A layer that is folded away is found, opened, marked and brought into view; its spans are framed."""
    page = open_page(report.to_html(many_blocks()))
    page.keyboard.press("/")
    page.keyboard.type("blocks.57.")
    assert page.locator("#count").inner_text() == "1 of 3"
    chosen = page.locator("#graph .node.chosen")
    assert chosen.get_attribute("data-name") == "model.blocks.57.norm"
    around, box = page.locator("#graph .pictures").bounding_box(), chosen.bounding_box()
    assert around["y"] <= box["y"] and box["y"] + box["height"] <= around["y"] + around["height"]
    assert page.locator("#timeline rect.chosen").count() == 1
    page.keyboard.press("Enter")
    assert page.locator("#graph .node.chosen").get_attribute("data-name") == "model.blocks.57.inner"
    page.keyboard.press("Shift+Enter")
    assert page.locator("#count").inner_text() == "1 of 3"
    page.keyboard.press("Escape")
    assert page.locator("#graph .node.chosen").count() == page.locator("#timeline rect.chosen").count() == 0


@pytest.mark.full
def test_keys(open_page: Any) -> None:
    """Layers take the focus, say what they are, open and fold by Enter; the timeline moves by keys."""
    page = open_page(report.to_html(many_blocks()))
    before = page.locator("#graph .node").count()
    page.locator("#graph .node.module").first.focus()
    assert "layers, 0 functional ops" in tip(page)
    page.keyboard.press("Enter")
    opened = page.locator("#graph .node").count()
    assert opened > before
    assert page.evaluate("document.activeElement.classList.contains('node')")
    page.keyboard.press("Enter")
    assert page.locator("#graph .node").count() != opened
    page.locator("#timeline svg").focus()
    whole = page.evaluate("view.to - view.from")
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("view.from") > 0
    page.keyboard.press("0")
    assert page.evaluate("view.to - view.from") == whole


@pytest.mark.full
@pytest.mark.parametrize("width", [800, 1400])
def test_open_all_fits(open_page: Any, width: int) -> None:
    """All layers beside each other are no wider than the picture."""
    names = [f"wide.{n}" for n in range(70)]
    graph = graph_of({name: {"module": name, "forward_s": 1} for name in names})
    page = open_page(report.to_html(Plan(graph, cluster_of(9), dict.fromkeys(names, "d0"))), width=width)
    page.get_by_role("button", name="open all").click()
    assert page.locator("#graph .node").count() == 70
    assert page.evaluate(
        "(one => one.scrollWidth <= one.clientWidth)(document.querySelector('#graph .pictures'))"
    )


@pytest.mark.full
def test_zoom_and_move(open_page: Any) -> None:
    """Buttons, wheel with Ctrl, dragging and keys change the window of time; all shows all."""
    page = open_page(report.to_html(odd_plan()))

    def window() -> tuple[float, float]:
        low, high = page.evaluate("[view.from, view.to]")
        return low, high

    whole = window()
    page.get_by_role("button", name="zoom in").first.click()
    nearer = window()
    assert nearer[1] - nearer[0] == pytest.approx((whole[1] - whole[0]) / 2)
    picture = page.locator("#timeline svg").bounding_box()
    middle = picture["x"] + picture["width"] / 2, picture["y"] + 40
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 100, middle[1])
    page.mouse.up()
    moved = window()
    assert moved[0] < nearer[0] and moved[1] - moved[0] == pytest.approx(nearer[1] - nearer[0])
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function("([from, to]) => view.to - view.from < to - from", arg=list(moved))
    page.locator("#timeline svg").focus()
    page.keyboard.press("-")
    page.get_by_role("button", name="all", exact=True).click()
    assert window() == whole


@pytest.mark.full
def test_folding(open_page: Any) -> None:
    """Many layers are folded; a click opens a module, a click on a layer folds it again."""
    page = open_page(report.to_html(many_blocks()))
    count = page.locator("#graph .node").count
    first = count()
    assert first < 60
    page.get_by_role("button", name="fold all").click()
    assert count() == 1
    page.get_by_role("button", name="as at first").click()
    assert count() == first
    page.locator("#graph .node.module").first.click()
    assert count() > first and page.evaluate(OVERLAPS) == 0
    page.get_by_role("button", name="open all").click()
    assert count() == 300 and page.evaluate(OVERLAPS) == 0
    page.locator("#graph .node.layer").first.click()
    assert count() == 298
    assert "3 layers, 0 functional ops\nd0" in hover(page, "#graph .node.module")


@pytest.mark.full
def test_circles_of_modules(open_page: Any) -> None:
    """Folded modules that read each other's layers are laid out too."""
    names = [f"{'ab'[n % 2]}.{n}" for n in range(80)]
    graph = graph_of(
        {name: {"module": name, "forward_s": 1} for name in names},
        [(one, other, 4) for one, other in pairwise(names)],
    )
    page = open_page(report.to_html(Plan(graph, cluster_of(9), dict.fromkeys(names, "d0"))))
    page.get_by_role("button", name="fold all").click()
    assert page.locator("#graph .node").count() == 2 and page.locator("#graph .link").count() == 1


@pytest.mark.full
def test_narrow_and_empty(open_page: Any) -> None:
    """A narrow window, and a plan in which nothing runs."""
    page = open_page(report.to_html(odd_plan()), width=420)
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    graph = graph_of({"input:x": {"kind": "input"}})
    page = open_page(report.to_html(Plan(graph, cluster_of(9), {})))
    assert page.locator("#graph .node").count() == 1


@pytest.mark.full
def test_paper(open_page: Any) -> None:
    """On paper it is light, whatever the screen was, and has no buttons."""
    page = open_page(report.to_html(odd_plan()), "dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("button").first.is_visible()
    assert page.pdf()[:5] == b"%PDF-"


@pytest.mark.full
def test_odd_names_are_shown(open_page: Any) -> None:
    """What looks like markup is text on the screen as well."""
    page = open_page(report.to_html(odd_plan()))
    assert page.locator("h1").inner_text() == f"Model {ODD}".replace(
        "\u2028", page.locator("h1").inner_text()[-2]
    )


def test_many_devices_with_endless_names(open_page: Any) -> None:
    """Nothing is wider than the window; of forty devices sixteen are shown, and all if they are asked for."""
    layers = [f"{'m' * 1_900}.{number}" for number in range(40)]
    graph = graph_of({name: {"forward_s": 1.0, "param_bytes": 9} for name in layers})
    cluster = cluster_of(*[99] * 40)
    plan = Plan(graph, cluster, dict(zip(layers, cluster.names, strict=True)))
    page = open_page(report.to_html(plan), width=800)
    assert page.evaluate("document.documentElement.scrollWidth") <= 800
    rows = page.locator("#timeline svg .row")
    assert rows.count() == page.locator("#memory .pictures > div:visible").count() == 16
    page.get_by_role("button", name="all devices").click()
    assert rows.count() == page.locator("#memory .pictures > div:visible").count() == 40
