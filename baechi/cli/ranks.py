"""`baechi ranks`: a plan's file over several processes."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console, Group

from baechi.cli.options import JsonOption
from baechi.records import files
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.report.ranks import ranks_of, ranks_tables, starts_of
from baechi.report.words import DrawnTable, Words


def ranks_command(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A file of a plan or a pipeline.")],
    script: Annotated[str, typer.Option(help="What the processes run.")] = "train.py",
    as_json: JsonOption = False,
) -> None:
    """Say which rank of torchrun has which part of a plan, what it sends, and how to start all of them.

    Example: baechi ranks pipeline.json
    """
    is_pipeline = files.holds(Pipeline.record_kind, plan)
    ranks = ranks_of(Pipeline.load(plan) if is_pipeline else Plan.load(plan))
    starts = starts_of(ranks, script)
    if as_json:
        body = {"ranks": [asdict(one) for one in ranks], "start": [asdict(one) for one in starts]}
        print(json.dumps(body, indent=1))
        return
    Console().print(Group(*map(DrawnTable, ranks_tables(ranks))))
    if len(ranks) == 1:
        Console().print(Words("All of it lies on one device: it needs no torchrun."), highlight=False)
        return
    for one in starts:
        line = f"{one.host}: {one.command}" if len(starts) > 1 else one.command
        Console().print(line, markup=False, highlight=False, soft_wrap=True)
