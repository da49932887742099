"""Many cases, and a list of what failed: `PYTHONPATH=.:tests python -m hunt.interrupts --count 300`."""

import argparse
import faulthandler
import gc
import logging
import threading
import time

import torch

from .cases import Hunt, Wrong, rss_bytes
from .modes import MODES


def main() -> None:
    """Run the cases; print what was wrong, and how the others ended."""
    parser = argparse.ArgumentParser(prog="hunt.interrupts", description=__doc__)
    parser.add_argument("modes", nargs="*", default=list(MODES), help="which modes")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="how many seeds of each mode and kind")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    for mode in asked.modes:
        hunt, begun_s, wrong = Hunt(mode), time.perf_counter(), 0
        gc.freeze()
        first_bytes = 0
        for seed in range(asked.start, asked.start + asked.count):
            for interrupts in (True, False):
                faulthandler.dump_traceback_later(60, exit=True)
                try:
                    hunt.case(seed, interrupts=interrupts)
                except Wrong as error:
                    wrong += 1
                    print(error, flush=True)
            if seed == asked.start + 30:
                first_bytes = rss_bytes()
        faulthandler.cancel_dump_traceback_later()
        grown = (rss_bytes() - first_bytes) / 2**20
        print(
            f"{mode}: {wrong} wrong, {dict(hunt.outcomes)}, {grown:.1f} MiB,"
            f" {threading.active_count()} threads, {time.perf_counter() - begun_s:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
