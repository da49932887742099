"""The command line: thin, everything it does is a function of the library."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baechi import __version__, report
from baechi.cli import planning
from baechi.cli.told import FAILED, debug, told
from baechi.records.plan import Plan

app = typer.Typer(
    help="Automatic model-parallel placement for PyTorch modules.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _main(
    traceback: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Automatic model-parallel placement for PyTorch modules."""
    debug.set(traceback)


@app.command()
def demo() -> None:
    """Train a Transformer over four emulated devices, and compare it with one device."""
    from baechi.demo import run  # torch takes a while to load: only when it is needed

    if not run(Console()):
        raise typer.Exit(1)


@app.command(name="report")
@told
def report_command(plan: Annotated[Path, typer.Argument(help="A file that Plan.save wrote.")]) -> None:
    """Say where a plan puts each layer, how full the devices are, and what travels."""
    Console().print(report.render(Plan.load(plan)))


@app.command()
def bench(
    what: Annotated[str, typer.Argument(help="What to measure: runtime.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure what things cost, as figures of one run."""
    if what != "runtime":
        Console(stderr=True).print(f"error: no bench {what!r}: there is runtime", markup=False)
        raise typer.Exit(FAILED)
    from baechi.bench.runtime import host_costs, table

    costs = host_costs()
    if as_json:
        print(json.dumps([asdict(cost) for cost in costs], indent=1))
    else:
        Console().print(table(costs))


for command in (planning.profile, planning.place, planning.fits, planning.clusters, planning.links):
    app.command()(told(command))


@app.command()
def version() -> None:
    """Print the version."""
    Console().print(__version__)
