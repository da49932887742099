"""The command line: thin, everything it does is a function of the library.

In:    arguments of a command.
Out:   what the library returns, as text or files; exit codes.
Start: this file, then `plan_commands`.
"""

import json
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from baechi import __version__
from baechi.cli import plan_commands, plans
from baechi.cli.error_output import Commands, errors_printed
from baechi.cli.ranks import ranks_command
from baechi.progress import progress
from baechi.report.words import DrawnTable

app = typer.Typer(
    cls=Commands,
    help="Automatic model-parallel placement for PyTorch modules.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Automatic model-parallel placement for PyTorch modules."""
    if version:
        Console().print(__version__, highlight=False)
    elif context.invoked_subcommand is None:
        print(context.get_help())
    if version:
        raise typer.Exit


@app.command()
def demo() -> None:
    """Train a model with two towers on one emulated device and over two, and compare them."""
    import torch

    from baechi.demo import run  # torch takes a while to load: only when it is needed

    torch.set_num_threads(1)  # its tensors are small: more threads take five times the processor time
    if not run(Console()):
        raise typer.Exit(1)


@app.command()
@errors_printed
def bench(
    what: Annotated[str, typer.Argument(help="What to measure: host.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less, to see whether it works.")] = False,
) -> None:
    """Measure what the runtime takes of the host, on emulated devices, and on accelerators if there are any.

    Example: baechi bench host
    """
    if what != "host":
        raise ValueError(
            f"{f'there is no bench {what!r}' if what else 'say which bench'}: there is `host`; "
            "the project's other benches run in a clone: PYTHONPATH=tests python -m benches"
        )
    from baechi.cli.host_costs import host_costs  # torch takes a while to load

    with progress("measuring host"):
        tables, body = host_costs(quick=quick)
    if as_json:
        print(json.dumps(body, indent=1))
    else:
        Console().print(*map(DrawnTable, tables))


@app.command(name="selftest")
@errors_printed
def selftest_command(
    emulate: Annotated[
        int, typer.Option(min=0, max=64, help="Test so many emulated devices, not the accelerators.")
    ] = 0,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write what was found, for an issue.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Try two models only.")] = False,
) -> None:
    """Try on this machine's devices whether numbers are right, and how true predictions are.

    Ten small models run plain, pipelined, split and compiled, and are compared with a plain loop on the
    host. Then all copies between devices are compared, and the step of a larger model is predicted and
    measured. Takes a few minutes; exits with 1 if anything is wrong.

    Examples:

        baechi selftest --json selftest.json

        baechi selftest --emulate 2 --quick
    """
    from baechi.records import files
    from baechi.records.cluster import Cluster
    from baechi.selftest import devices_here, selftest

    if json_file is not None:
        files.check_output(json_file)
    found = selftest(Cluster.virtual(emulate) if emulate else devices_here(), quick=quick)
    Console().print(found.table())
    if json_file is not None:
        files.write(json_file, found.to_json())
    if not found.is_right:
        raise typer.Exit(1)


@app.command(name="env")
@errors_printed
def env_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show versions, devices and settings, for a report of a defect."""
    from baechi.cli.environment import environment

    found = environment()
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for heading, values in found.items():
        print(f"{heading}:" if values else f"{heading}: none")
        for name, value in values.items():
            print(f"  {name}: {value}")


COMMANDS: dict[str, Callable[..., None]] = {
    "profile": plan_commands.profile,
    "place": plan_commands.place,
    "fits": plan_commands.fits,
    "clusters": plan_commands.clusters,
    "links": plan_commands.links,
    "report": plans.report_command,
    "simulate": plans.simulate_command,
    "compare": plans.compare_command,
    "ranks": ranks_command,
}
for name, command in COMMANDS.items():
    app.command(name=name)(errors_printed(command))
