"""A script that goes on after a restart: `elastic.py FOLDER KILLED`, by torchrun or alone.

Each rank saves its part after each step. In step 5 of the first attempt rank KILLED is killed. Rank 0 writes
the losses. Whatever the number of ranks then is, the last complete checkpoint is read whole, before the
model is distributed anew.
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


def saved(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Save what lies here."""
    names = [name for name, _ in model.named_parameters()]
    here = {key: one for key, one in model.state_dict().items() if not isinstance(one, ElsewhereTensor)}
    state = {names[number]: one for number, one in optimizer.state_dict()["state"].items()}
    part = folder / f"step{step}.rank{RANK}.of{SIZE}"
    torch.save({"weights": here, "optimizer": state}, part.with_suffix(".part"))
    part.with_suffix(".part").rename(part)


def loaded(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the last checkpoint that is complete; returns its step."""
    for step in range(STEPS, 0, -1):
        parts = sorted(folder.glob(f"step{step}.rank*.of?"))
        if parts and len(parts) == int(parts[0].name[-1]):
            weights: dict[str, Any] = {}
            states: dict[str, Any] = {}
            for part in parts:
                one = torch.load(part)
                weights.update(one["weights"])
                states.update(one["optimizer"])
            model.load_state_dict(weights)
            names = [name for name, _ in model.named_parameters()]
            numbered = {number: states[name] for number, name in enumerate(names)}
            optimizer.load_state_dict({**optimizer.state_dict(), "state": numbered})
            return step
    return 0


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    folder, killed = Path(sys.argv[1]), sys.argv[2]
    is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    model, batch = built("tied")
    data = [batch() for _ in range(STEPS)]
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    done = loaded(folder, model, optimizer)
    baechi.distribute(
        model, data[0], microbatches=2, optimizer=optimizer, loss_weights="rows", coupled="accept"
    )
    for step in range(done + 1, STEPS + 1):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = model(**data[step - 1])["loss"]
        loss.backward()
        if is_first and step == FAULT_STEP and str(RANK) == killed:
            os.kill(os.getpid(), signal.SIGKILL)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        saved(folder, step, model, optimizer)
        if RANK == 0:
            with (folder / "losses").open("a") as file:
                print(json.dumps([step, loss.item(), SIZE]), file=file)


if __name__ == "__main__":
    main()
