"""The command line: thin, everything it does is a function of the library."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baechi import __version__, report
from baechi.cli import planning
from baechi.cli.told import debug, told
from baechi.records.plan import Plan

_WIDE = 140  # columns of a table that goes to a file

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
@told
def bench(
    what: Annotated[str, typer.Argument(help="What to measure; without it, a list of what there is.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables as Markdown.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less, to see whether it works.")] = False,
) -> None:
    """Measure what things cost, as figures of one run."""
    from baechi.bench.registry import find

    measure = find(what)
    with Console(stderr=True).status(f"measuring {what}"):
        figures = measure(quick=quick)
    if as_json or markdown:
        print(figures.as_json() if as_json else figures.as_markdown())
    else:
        Console(width=None if sys.stdout.isatty() else _WIDE).print(*figures.tables)


for command in (planning.profile, planning.place, planning.fits, planning.clusters, planning.links):
    app.command()(told(command))


@app.command()
def version() -> None:
    """Print the version."""
    Console().print(__version__)
