"""What to do with a plan's file: report, simulate, compare."""

import os
from typing import Annotated

import typer
from rich.console import Console, Group

from baechi import report
from baechi.cli.graph_input import plan_for
from baechi.cli.options import (
    USUAL,
    ClusterOption,
    EffortOption,
    MemoryOption,
    OptimizerOption,
    PlacerOption,
)
from baechi.cli.targets import shipped
from baechi.errors import printable
from baechi.records import files
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.report.facts import Facts
from baechi.report.tables import Table, memory, time, traffic
from baechi.report.text import headline
from baechi.report.words import DrawnTable, Words

PlanFile = Annotated[
    str, typer.Argument(metavar="PLAN", help="A file that Plan.save wrote, or a shipped plan.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]


def report_command(
    plan: Annotated[
        str,
        typer.Argument(
            metavar="PLAN|TARGET", help="A file of a plan or pipeline, or a graph or model to place first."
        ),
    ],
    cluster: ClusterOption = USUAL,
    placer: PlacerOption = "auto",
    optimizer: OptimizerOption = None,
    effort: EffortOption = "1",
    max_memory: MemoryOption = None,
    measured: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A measured step (last_step(model).save(FILE)), to show beside."),
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write a page for a browser.")] = None,
    svg: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a small picture, for a page of yours.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev.")
    ] = None,
    as_json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the facts.")] = None,
) -> None:
    """Say why a plan's step is not faster, how full the devices are, where layers lie, what travels.

    Prints text, or writes the files that it is asked for (- is the standard output). What is no plan yet
    is placed first, as `baechi place` does.

    Examples:

      baechi report plan.json

      baechi report plan.json --html report.html --trace trace.json

      baechi report zoo:bert-large --cluster 2xRTX-4090-pcie --optimizer sgd --html report.html

      baechi report plan.json --json - | jq .reading

      baechi report pipeline.json --html report.html
    """
    wanted = ((html, "html"), (svg, "svg"), (trace, "trace"), (as_json, "json"))
    written = [file for file, _ in wanted if file is not None]
    places = [file if file == "-" else os.path.realpath(file) for file in written]
    for output, place in zip(written, places, strict=True):
        if places.count(place) > 1:
            raise ValueError(
                f"{output} would be written twice: give each of --html, --svg, --trace, --json its own file"
            )
        if output != "-":
            files.check_output(output)
    pipeline = _pipeline(plan)
    if pipeline is not None and as_json is not None:
        raise ValueError("of a pipeline there is text, --html, --svg and --trace; --json is of plans")
    loaded = pipeline or _plan(plan, cluster, placer, optimizer, effort, max_memory)
    step = None if measured is None else Timeline.load(measured)
    for file, form in wanted:
        if file is not None:
            _write(file, _formed(form, loaded, step))
    if not written:
        Console().print(report.render(loaded, step))


def simulate_command(plan: PlanFile, as_json: AsJson = False) -> None:
    """Predict the step of a plan: how long it takes, how busy devices and links are, how full it gets.

    The JSON is the timeline itself, as `baechi report --measured` and Timeline.load read it.

    Examples:

      baechi simulate plan.json

      baechi simulate plan.json --json > timeline.json
    """
    facts = Facts(Plan.load(plan))
    timeline = facts.plan.timeline
    if as_json:
        print(timeline.to_json(), end="")
        return
    _show(headline(facts), [time(facts), memory(facts), traffic(timeline)])


def compare_command(one: PlanFile, other: PlanFile, as_json: AsJson = False) -> None:
    """Compare two plans: their steps, what bounds them, how full the devices get, what lies elsewhere.

    Examples:

      baechi compare before.json after.json

      baechi compare before.json after.json --json
    """
    from baechi.verbs.comparison import compare

    difference = compare(one, other)
    if as_json:
        print(difference.to_json(), end="")
        return
    _show(difference.sentence, difference.tables())


def _pipeline(text: str) -> Pipeline | None:
    """The pipeline of a file; None if the text names none."""
    return Pipeline.load(text) if files.holds(Pipeline.record_kind, text) else None


def _plan(
    text: str, cluster: str, placer: str, optimizer: str | None, effort: str, max_memory: str | None
) -> Plan:
    """A plan from its file, or of a graph or a model that is placed now."""
    is_target = ":" in text and not os.path.exists(text)
    if is_target or text in shipped("graph") or files.holds(LayerGraph.record_kind, text):
        return plan_for(text, cluster, placer, optimizer, effort=effort, max_memory=max_memory)
    return Plan.load(text)


def _show(sentence: str, shown: list[Table]) -> None:
    Console().print(Group(Words(sentence, "bold"), "", *map(DrawnTable, shown)))


def _formed(form: str, plan: Plan | Pipeline, measured: Timeline | None) -> str:
    if form == "html":
        return report.to_html(plan, measured)
    if form == "svg":
        return report.to_svg(plan)
    if form == "trace":
        return report.to_trace(plan.timeline, measured)
    assert isinstance(plan, Plan)
    return Facts(plan, measured).to_json()


def _write(file: str, text: str) -> None:
    if file == "-":
        print(text, end="")
        return
    files.write(file, text)
    Console(stderr=True).print(f"wrote {printable(file)}", markup=False, highlight=False, soft_wrap=True)
