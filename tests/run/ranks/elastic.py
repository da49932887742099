"""A script that goes on after a restart: `elastic.py FOLDER KILLED [host]`, by torchrun or alone.

It is saved after each step. In step 5 of the first attempt rank KILLED is killed, with `host` its torchrun,
too. Rank 0 writes the losses. Whatever the number of ranks then is, the model is distributed anew, and the
run resumed.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from run.ranks.models import built
from torch import nn

import baechi
from baechi.torchlib.elsewhere import ElsewhereTensor

STEPS, FAULT_STEP = 8, 5
RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    folder, killed = Path(sys.argv[1]), sys.argv[2]
    is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    model, batch = built("tied")
    data = [batch() for _ in range(STEPS)]
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    options: dict[str, Any] = {"loss_weights": "rows", "coupled": "accept", "optimizer": optimizer}
    placer = "auto" if SIZE == 1 else "random:1"  # no rank has all layers
    baechi.distribute(model, data[0], microbatches=2, placer=placer, **options)
    here = [one for one in model.parameters() if not isinstance(one, ElsewhereTensor)]
    assert (len(here) < len(list(model.parameters()))) == (SIZE > 1)
    torch.manual_seed(7)
    done = baechi.resume(model, folder / "run", optimizer=optimizer)
    for step in range(done + 1, STEPS + 1):
        optimizer.zero_grad()
        loss = model(**data[step - 1])["loss"]
        loss.backward()
        if is_first and step == FAULT_STEP and str(RANK) == killed:
            if "host" in sys.argv:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        baechi.save(model, folder / "run", optimizer=optimizer, step=step)
        if RANK == 0:
            with (folder / "losses").open("a") as file:
                print(json.dumps([step, loss.item(), SIZE]), file=file)


if __name__ == "__main__":
    main()
