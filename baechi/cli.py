"""The command line: thin, everything it does is a function of the library."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from baechi import __version__
from baechi.commands import plans
from baechi.commands.told import told

app = typer.Typer(
    help="Automatic model-parallel placement for PyTorch modules.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _main() -> None:
    """Automatic model-parallel placement for PyTorch modules."""


@app.command()
def demo() -> None:
    """Train a Transformer over four emulated devices, and compare it with one device."""
    from baechi.demo import run  # torch takes a while to load: only when it is needed

    if not run(Console()):
        raise typer.Exit(1)


app.command(name="report")(told(plans.report_command))
app.command(name="simulate")(told(plans.simulate_command))
app.command(name="compare")(told(plans.compare_command))


@app.command()
def bench(
    what: Annotated[str, typer.Argument(help="What to measure: runtime.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure what things cost, as figures of one run."""
    if what != "runtime":
        Console(stderr=True).print(f"error: no bench {what!r}: there is runtime", markup=False)
        raise typer.Exit(2)
    from baechi.bench.runtime import host_costs, table

    costs = host_costs()
    if as_json:
        print(json.dumps([asdict(cost) for cost in costs], indent=1))
    else:
        Console().print(table(costs))


@app.command()
def version() -> None:
    """Print the version."""
    Console().print(__version__)
