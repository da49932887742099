"""Try other people's models: `python -m wild run`, then `table`; `pipeline`, `split`, `recompute`, `dry`."""

import argparse
from pathlib import Path

from wild import site
from wild.dry import compared, summary
from wild.libraries import LIBRARIES
from wild.runner import outcome, try_library
from wild.table import write

_TRIED = {
    "run": "try models, and keep what came out",
    "pipeline": "the same in microbatches, beside a loop over the parts of the batch",
    "whole": "two placers and microbatches, in double precision, beside the plain model on the whole batch",
    "split": "the same with the largest layer in shards",
    "recompute": "the same with blocks that run again in backward",
}


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m wild", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, what in _TRIED.items():
        run = commands.add_parser(command, help=what)
        run.add_argument(
            "packages", metavar="library", nargs="*", default=list(LIBRARIES), help="packages; all by default"
        )
        out = Path("wild.jsonl" if command == "run" else f"wild-{command}.jsonl")
        run.add_argument("--out", type=Path, default=out, help="what is in it is not tried again")
        run.add_argument("--only", nargs="*", help="names of models")
        run.add_argument("--limit", type=float, default=60.0, help="seconds that one model may take")
        run.add_argument("--start", type=int, default=0, help="the first model")
        run.add_argument("--stride", type=int, default=1, help="take each so many-th model")
    table = commands.add_parser("table", help="put what came out into the page")
    table.add_argument("--out", type=Path, default=Path("wild.jsonl"), help="what `run` kept")
    table.add_argument("--of", choices=list(_TRIED), default="run", help="the command that kept it")
    table.add_argument(
        "--page", type=Path, default=Path("docs/tested-models.md"), help="the page with the table"
    )
    dry = commands.add_parser("dry", help="run models dry beside the same steps with values")
    dry.add_argument("packages", metavar="library", nargs="*", default=list(LIBRARIES), help="packages")
    dry.add_argument("--start", type=int, default=0, help="the first model")
    dry.add_argument("--stride", type=int, default=1, help="take each so many-th model")
    dry.add_argument("--devices", type=int, default=2)
    dry.add_argument("--placer", default="random:1")
    dry.add_argument("--limit", type=int, default=120, help="seconds that one model may take in one way")
    chosen = parser.parse_args()
    if chosen.command == "table":
        write(chosen.out, chosen.page, chosen.of)
        return
    if reason := site.missing():
        raise SystemExit(reason)
    if chosen.command == "dry":
        _dry(chosen)
        return
    only, part = set(chosen.only) if chosen.only else None, slice(chosen.start, None, chosen.stride)
    for library in chosen.packages:
        for record in try_library(library, chosen.out, chosen.limit, only, command=chosen.command, part=part):
            kind, way, note = outcome(record)
            seconds = record.get("total_s", chosen.limit)
            print(
                f"{library:28}{record['name']:44}{seconds:6.1f} s  {kind:16}{way:28}{note[:160]}", flush=True
            )


def _dry(chosen: argparse.Namespace) -> None:
    site.enter()
    for library in chosen.packages:
        rows = []
        for row in compared(
            library, chosen.start, chosen.stride, chosen.devices, chosen.placer, chosen.limit
        ):
            rows.append(row)
            if row.outcome in ("off", "refused"):
                print(f"{library:28}{row.name:36}{row.way:12}{row.outcome:10}{row.note}", flush=True)
        print(f"{library:28}{summary(rows)}", flush=True)


if __name__ == "__main__":
    main()
