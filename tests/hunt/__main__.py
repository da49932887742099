"""Many seeds at once, and a table of what failed: `PYTHONPATH=tests python -m hunt --count 2000`."""

import argparse
import logging
import time
from collections import Counter, defaultdict
from pathlib import Path

import torch

from .case import Verdict, cases, judged
from .program import program
from .render import classes_text, rendered
from .shrink import shrunk
from .world import EMULATED


def main() -> None:
    """Run the cases; print the table, and the smallest models as they are found."""
    parser = argparse.ArgumentParser(prog="hunt", description=__doc__)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=200, help="how many seeds")
    parser.add_argument("--shrink", type=int, default=2, help="how many cases of each cause are shrunk")
    parser.add_argument("--without", default="", help="kinds of statements to leave out, by commas")
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to stop")
    parser.add_argument("--to", type=Path, help="a folder for the smallest programs")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    end_s = time.monotonic() + asked.seconds
    outcomes: Counter[str] = Counter()
    found: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for seed in range(asked.start, asked.start + asked.count):
        if time.monotonic() > end_s:
            break
        for verdict in judged(cases(seed, EMULATED, asked.without.split(",")), EMULATED):
            outcomes[verdict.outcome] += 1
            if verdict.failure is None or verdict.outcome == "plain raises":
                continue
            same = found[verdict.failure.signature]
            same.append(verdict)
            if len(same) <= asked.shrink:
                _show(shrunk(verdict, EMULATED), seed, asked.to)
    print(dict(outcomes))
    for (kind, cause), verdicts in sorted(found.items(), key=lambda item: -len(item[1])):
        first = verdicts[0]
        print(f"{len(verdicts):6}  {kind:16} {cause}  (seed {first.case.recipe.seed}: {first.failure})")


def _show(smallest: Verdict, seed: int, folder: Path | None) -> None:
    print(f"--- seed {seed}: {smallest.outcome}: {smallest.failure}")
    print(smallest.case.way, classes_text(rendered(smallest.case.recipe)), sep="\n\n", flush=True)
    if folder is not None:
        assert smallest.failure is not None
        name = "-".join("".join(c if c.isalnum() else " " for c in smallest.failure.kind).split())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}-{seed}.py").write_text(program(smallest))


if __name__ == "__main__":
    main()
