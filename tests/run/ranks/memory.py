"""A script that notes the memory of its process after some and after many steps: `memory.py PLAN FOLDER`."""

import os
import sys
from pathlib import Path

import torch
from run.ranks.models import built
from torch import nn

import baechi
from baechi.records.pipeline import Pipeline

SETTLED, STEPS = 600, 1100
"""Torch lists its last 2000 collectives: with four in each step they are full after 500 steps."""


def resident_bytes() -> int:
    """The memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    model, batch = built("tied")
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    pipeline = Pipeline.from_json(Path(sys.argv[1]).read_text())
    options = {"loss_weights": "rows", "coupled": "accept", "optimizer": optimizer}
    baechi.distribute(model, batch(), plan=pipeline, **options)
    found = []
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        model(**batch())["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if step in (SETTLED, STEPS):
            found.append(resident_bytes())
    (Path(sys.argv[2]) / os.environ["RANK"]).write_text(f"{found[0]} {found[1]}")


if __name__ == "__main__":
    main()
