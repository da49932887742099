"""`PYTHONPATH=tests python -m benches NAME`: measures, and prints a table."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baechi.cli.error_output import errors_printed
from baechi.progress import progress
from baechi.report.words import DrawnTable
from benches.registry import find


@errors_printed
def main(
    what: Annotated[str, typer.Argument(help="Which bench; without it, a list of what there is.")] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures as JSON, too.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables as Markdown.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less, to see whether it works.")] = False,
    models: Annotated[str, typer.Option(help="Only models whose names begin so, with commas between.")] = "",
    devices: Annotated[str, typer.Option(help="Only clusters whose names begin so, such as '4 A100'.")] = "",
) -> None:
    """Measure what things cost, as figures of one run."""
    chosen = [[one for one in text.split(",") if one] for text in (models, devices)]
    measure = find(what, models=chosen[0], devices=chosen[1])
    with progress(f"measuring {what}"):
        figures = measure(quick=quick)
    if json_file is not None:
        json_file.write_text(figures.as_json() + "\n")
    if markdown:
        print(figures.as_markdown())
    else:
        Console().print(*map(DrawnTable, figures.shown()))


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(main)

if __name__ == "__main__":
    app()
