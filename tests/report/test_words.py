"""Reports fit 80 columns whatever layers and devices are called; figures whole; terminals obey nothing."""

import re
from dataclasses import replace
from io import StringIO
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import graph_of
from records.pipeline.chains import equal_chain
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from baechi import report
from baechi.cli import app
from baechi.errors import printable
from baechi.records import Cluster, Device, Link, Plan, Timeline
from baechi.records.pipeline import Pipeline
from baechi.report.difference import Difference
from baechi.report.facts import Facts
from baechi.report.pipeline import PipelineFacts
from baechi.report.pipeline.text import tables as tables_of_pipeline
from baechi.report.tables import Table, tables
from baechi.report.words import DrawnTable, lines_of, shortened
from baechi.simulate.pipeline import ordered

WIDTH = 80
FIGURE = re.compile(r"[(+-]?\d[\d.]*( (%|×|s|ms|µs|B|[KMGT]iB)(/s)?)?")
TORN = re.compile(r"\d *\n *(%|×|ms|µs|[KMGT]iB)")
DEEP = "model.decoder.layers.{}.self_attn.q_proj"
NAMES = {
    "usual": ("{}", "cuda:{}"),
    "deep": (DEEP, "device:{}"),
    "hosts": (f"module.{DEEP}.base_layer.lora_A.default", "worker-{}.cluster.internal/cuda:0"),
    "endless": ("x" * 900 + "{}" + "y" * 900, "d" * 1_900 + "{}"),
    "escapes": ("\x1b[31mred\x07\n{}\u202e\u2028.a", "d\x1b]0;title\x07{}"),
}


def plan_of(layer: str, device: str, devices: int) -> Plan:
    """A chain round some devices, of large figures."""
    kinds = ["A100-40GB", "H100-80GB"]
    cluster = Cluster(
        tuple([Device(device.format(n), kinds[n % 2], 1234 * 2**30) for n in range(devices)]),
        link=Link(1e-5, 1e9),
    )
    costs = dict(forward_s=0.1234, backward_s=0.5678, param_bytes=123 * 2**30, grad_bytes=123 * 2**30,
                 output_bytes=1234567, saved_bytes=12 * 2**30)  # fmt: skip
    names = [layer.format(n) for n in range(2 * devices)]
    graph = graph_of({name: dict(costs) for name in names}, [(*pair, 1234567) for pair in pairwise(names)],
                     training=True, optimizer="adam", model=layer.format("Model"))  # fmt: skip
    return Plan(graph, cluster, {name: cluster.names[n % devices] for n, name in enumerate(names)})


def measured(plan: Plan) -> Timeline:
    return replace(plan.timeline, source="measured", counters={"deferred": 3, "copied_bytes": 2**33})


def check(text: str, shown: list[Table]) -> None:
    """No line is too long, no character is obeyed, each figure of the tables stands in one piece."""
    for line in text.splitlines():
        assert cell_len(line) <= WIDTH, line
    assert text.replace("\n", "").isprintable()
    assert not TORN.search(text)
    for table in shown:
        for row in table.rows:
            for cell in row:
                assert not FIGURE.fullmatch(cell) or cell in text, (table.title, cell)


@pytest.mark.parametrize("devices", [2, 64])
@pytest.mark.parametrize("names", NAMES)
def test_reports_fit(names: str, devices: int) -> None:
    """Of plans, predicted and measured."""
    plan = plan_of(*NAMES[names], devices)
    facts = Facts(plan, measured(plan))
    text = report.to_text(plan, facts.measured, width=WIDTH)
    check(text, tables(facts))
    assert len(text.splitlines()) < 220
    if devices == 64:
        assert "32 x A100-40GB, 32 x H100-80GB" in " ".join(text.split())


@pytest.mark.parametrize("names", NAMES)
def test_comparisons_fit(names: str) -> None:
    """Of two plans, whose files may be called anything."""
    plan = plan_of(*NAMES[names], 4)
    other = Plan(plan.graph, plan.cluster, dict.fromkeys(plan.device_of, plan.cluster.names[0]))
    shown = Difference(Facts(plan), Facts(other), (names * 20, "b")).tables()
    check(drawn(shown), shown)


@pytest.mark.parametrize("devices", [2, 40])
@pytest.mark.parametrize("names", NAMES)
def test_pipelines_fit(names: str, devices: int) -> None:
    """Beside the plan without microbatches, with all that was tried."""
    plan = plan_of(*NAMES[names], 2) if devices == 2 else equal_chain(devices)
    made = ordered(plan, 4, "1f1b" if devices > 2 else "auto")
    known: Pipeline = replace(made, unsplit=replace(made.plan, placer="m-etf + bottom level"))
    check(report.to_text(known, width=WIDTH), tables_of_pipeline(PipelineFacts(known)))


@pytest.mark.parametrize("names", NAMES)
def test_pages_hold(names: str) -> None:
    """No text of a page is endless, none has characters that are not to be seen."""
    plan = plan_of(*NAMES[names], 3)
    page = report.to_html(plan).partition('<script type="application/json"')[0]
    shown = re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)
    assert max(map(len, shown.split(" "))) < 200
    assert shown.replace("\n", " ").replace("\xa0", " ").isprintable()


def test_wide_tables_fit() -> None:
    """A table with more columns than there is room for goes on below, with its first column again."""
    row = (DEEP.format(11), *[f"{n}234.56 ms" for n in range(14)])
    shown = Table("A bench", ("model", *[f"column {n}" for n in range(14)]), (row,), ("model",))
    text = drawn([shown])
    check(text, [shown])
    assert text.count("elf_attn.q_proj") == 3


def test_clusters_fit() -> None:
    """The list of shipped clusters."""
    done = CliRunner().invoke(app, ["clusters"], env={"COLUMNS": str(WIDTH)})
    check(done.output, [])


def drawn(shown: list[Table]) -> str:
    file = StringIO()
    Console(file=file, width=WIDTH, color_system=None).print(*map(DrawnTable, shown))
    return file.getvalue()


def test_names_are_cut_in_the_middle() -> None:
    """The beginning says where, the end says which."""
    assert shortened(DEEP.format(11), 30) == "model.decoder.…elf_attn.q_proj"
    assert shortened("abc", 3) == "abc" and shortened("abcd", 3) == "a…d"
    assert shortened("模型模型模型", 7) == "模…模型"


def test_figures_keep_their_units() -> None:
    """Lines break between words, not between a figure and its unit."""
    assert lines_of("it takes 4.57 ms (15 %) of 2 devices", 13) == [
        "it takes",
        "4.57 ms",
        "(15 %) of 2",
        "devices",
    ]
    assert lines_of("on 48 x A100-40GB, 2 x L4", 16) == ["on", "48 x A100-40GB,", "2 x L4"]


def test_control_characters_are_shown() -> None:
    """A terminal shows them, and does nothing."""
    assert printable("a\x1b[2Jb\n") == r"a\x1b[2Jb\n"


@given(st.text(max_size=60), st.integers(1, 30))
@settings(max_examples=examples(200), deadline=None)
def test_any_text_fits(text: str, width: int) -> None:
    """Whatever it is and however narrow the line."""
    for line in [shortened(printable(text), width), *lines_of(text, max(2, width))]:
        assert cell_len(line) <= max(2, width) and line.isprintable()
