"""Try other people's models: `python -m wild run`, then `python -m wild table`."""

import argparse
from pathlib import Path

from wild import site
from wild.libraries import LIBRARIES
from wild.runner import outcome, try_library
from wild.table import write


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m wild", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="try models, and keep what came out")
    run.add_argument(
        "packages", metavar="library", nargs="*", default=list(LIBRARIES), help="packages; all unless given"
    )
    run.add_argument("--out", type=Path, default=Path("wild.jsonl"), help="what is in it is not tried again")
    run.add_argument("--only", nargs="*", help="names of models")
    run.add_argument("--limit", type=float, default=60.0, help="seconds that one model may take")
    table = commands.add_parser("table", help="put what came out into the page")
    table.add_argument("--out", type=Path, default=Path("wild.jsonl"), help="what `run` kept")
    table.add_argument("--page", type=Path, default=Path("docs/wild.md"), help="the page with the table")
    chosen = parser.parse_args()
    if chosen.command == "table":
        write(chosen.out, chosen.page)
        return
    if reason := site.missing():
        raise SystemExit(reason)
    for library in chosen.packages:
        for record in try_library(
            library, chosen.out, chosen.limit, set(chosen.only) if chosen.only else None
        ):
            kind, way, note = outcome(record)
            seconds = record.get("total_s", chosen.limit)
            print(
                f"{library:28}{record['name']:44}{seconds:6.1f} s  {kind:16}{way:28}{note[:160]}", flush=True
            )


if __name__ == "__main__":
    main()
