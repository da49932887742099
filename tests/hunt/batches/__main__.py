"""Many cases, and a table: `PYTHONPATH=.:tests python -m hunt.batches --count 1000`."""

import argparse
import time
from collections import Counter

import torch

from .draw import draw
from .judge import REFUSED, is_right_by_a_rule, outcome, without_lanes


def main() -> None:
    """Run cases; print what is silent, false alarms, errors of others, and a table."""
    parser = argparse.ArgumentParser(prog="hunt.batches", description=__doc__)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=500, help="how many seeds")
    parser.add_argument("--half", type=int, help="0 or 1: one half of the kinds; all unless given")
    parser.add_argument("--steps", type=int, default=1, help="steps of each case")
    parser.add_argument(
        "--judge", action="store_true", help="the judge alone: a loop in place of the pipeline"
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to stop")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    end_s = time.monotonic() + asked.seconds
    outcomes: Counter[str] = Counter()
    for seed in range(asked.start, asked.start + asked.count):
        if time.monotonic() > end_s:
            break
        case = draw(seed, asked.half)
        try:
            found = (without_lanes if asked.judge else outcome)(case, asked.steps)
        except Exception as error:  # whatever it is, it is a finding
            found = f"OTHER: {type(error).__name__}: {error}"
        kind, _, text = found.partition(":")
        if kind == REFUSED and case.is_loss and not case.draws and is_right_by_a_rule(case):
            is_one_rule = not case.couples and case.init != "zero gate"
            kind = "FALSE ALARM" if is_one_rule else "refused, right for this batch"
        elif kind == REFUSED and not case.couples and case.is_loss and case.init != "zero gate":
            kind = "refused, no rule of the hunt's"
        if kind.isupper() or kind in ("refused, no rule of the hunt's", "said"):
            print(f"{kind} {case}\n    {text.strip()[:300]}", flush=True)
        if kind == "equal" and text.strip():
            kind = "equal, said"
        outcomes[kind] += 1
    print(f"seeds {asked.start} to {asked.start + outcomes.total() - 1}: {dict(outcomes)}")


if __name__ == "__main__":
    main()
