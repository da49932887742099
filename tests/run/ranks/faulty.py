"""A script with a fault: `faulty.py PLAN KIND PLACE RANK`: in step 3 a rank does something else.

KIND    raise, exit, kill, hang, interrupt; late: it raises while others are in code of their own for ever
PLACE   forward, backward (inside of its programs), step (the optimizer's), loop (between calls)
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from run.ranks.models import built

import baechi
from baechi.records.pipeline import Pipeline
from baechi.run.ranks.loop import RankLoop

FAULT_STEP = 3


def fault(kind: str) -> None:
    """Do it."""
    print(f"fault at {time.time()}", file=sys.stderr, flush=True)
    if kind in ("raise", "late"):
        raise ValueError("no such token")
    if kind == "exit":
        sys.exit(3)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "interrupt":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # some shells ignore it
        signal.raise_signal(signal.SIGINT)
    while kind == "hang":
        time.sleep(1)


def armed(kind: str, place: str) -> None:
    """Let the next program of a direction be the faulty one."""
    keep = RankLoop._keep

    def kept(self: RankLoop, values: Any, program: Any, made: Any) -> None:
        if program.name.startswith(place):
            fault(kind)
        keep(self, values, program, made)

    RankLoop._keep = kept  # type: ignore[method-assign]


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    plan, kind, place, rank = sys.argv[1:]
    here = os.environ["RANK"] == rank
    model, batch = built("towers")
    data = batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    pipeline = Pipeline.from_json(Path(plan).read_text())
    baechi.distribute(model, data, plan=pipeline, loss_weights="rows", optimizer=optimizer)
    for step in range(1, 6):
        is_now = here and step == FAULT_STEP
        if is_now and place in ("forward", "backward"):
            armed(kind, place)
        if is_now and place == "loop":
            fault(kind)
        if kind == "late" and step == FAULT_STEP:
            time.sleep(600)
        optimizer.zero_grad()
        model(**data).backward()
        if is_now and place == "step":
            optimizer.register_step_pre_hook(lambda *_: fault(kind))
        optimizer.step()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        print(f"raised at {time.time()}", file=sys.stderr, flush=True)
        raise
